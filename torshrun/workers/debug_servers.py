"""Checks that workers can serve debugpy, before any of them starts."""

from __future__ import annotations

import os
import socket
import subprocess

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Address
from torshrun.workers.spec import WorkerSpec

IMPORT_BOUND = 30.0
"""Seconds that the workers' Python may take to look for debugpy."""
_LOOK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('debugpy') is None)"


def check(spec: WorkerSpec, first: Address) -> None:
    """Raise ConfigError if debugpy is not installed, or if a port from `first` on is taken."""
    python = spec.argv[0]
    if not _has_debugpy(python, spec):
        raise ConfigError(
            f"--debugpy: the workers' Python ({python}) has no debugpy: {python} -m pip install "
            f"debugpy"
        )
    for local_rank in range(len(spec.own_environ)):
        _check_port(Address(first.host, first.port + local_rank), local_rank)


def _has_debugpy(python: str, spec: WorkerSpec) -> bool:
    try:
        looked = subprocess.run(
            [python, "-c", _LOOK],
            env=dict(spec.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=IMPORT_BOUND,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--debugpy: {python} cannot be asked for debugpy: {error}") from None
    return looked.returncode == 0


def _check_port(address: Address, local_rank: int) -> None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as debugpy does
            tried.bind(address)
            tried.listen()
    except OSError as error:
        raise ConfigError(
            f"--debugpy: {address}, for local rank {local_rank}, cannot be listened on: "
            f"{os.strerror(error.errno or 0).lower()}; give another port"
        ) from None
