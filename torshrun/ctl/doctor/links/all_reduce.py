"""Runs an all_reduce between two nodes, each started by torshrun as a job's workers are."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from torsh_runtime.store.keys import derive
from torshrun.config.job import Address
from torshrun.config.options import OPTIONS
from torshrun.ctl.doctor.links.orders import CHECK_SECONDS, Checked
from torshrun.text import printable

_ENDS_WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "  # PR_SET_PDEATHSIG, SIGTERM
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_WORKER = "torsh_runtime.network_check"
_JOIN_SECONDS = 20
_STOP_SECONDS = 10.0
"""Seconds for stopping. That is less than the asker waits, so that both agents end before."""
_MOST_SAID = 300
_TELLING = (
    re.compile(r"\b\w*(Error|Lost|Timeout): "),  # the last line of a traceback
    re.compile(r"error|failed|could not|refused|lost|timed? ?out", re.IGNORECASE),
    re.compile(""),
)
"""Patterns of the lines of a failed agent's output that explain the failure, best first."""


class Place(NamedTuple):
    """Describes one of the two nodes in the job of the check."""

    node_rank: int
    """The group rank, 0 or 1. Node 0 serves the store."""
    master: Address
    """An address of node 0, as node 1 knows it, with a free port there."""
    run_id: str
    with_gpus: bool = False
    """True if all GPUs of both nodes take part, over NCCL."""


def take_part(place: Place, key: bytes) -> Checked:
    """Run this node's agent, and return its worker's measurement within CHECK_SECONDS."""
    process = subprocess.Popen(
        _command(place),
        env=_environ(place, key, os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            said, _ = process.communicate(timeout=CHECK_SECONDS - 2 * _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            said = _stop(process)
            return Checked(f"not done in time: {_last(said)}", 0.0, 0.0)
        except BaseException:
            process.kill()
            raise
    return _result(process.returncode, said)


def _command(place: Place) -> list[str]:
    host, port = place.master
    options = {
        "nnodes": "2",
        "node-rank": str(place.node_rank),
        "nproc-per-node": "gpu" if place.with_gpus else "1",
        "rdzv-backend": "static",
        "master-addr": host,
        "master-port": str(port),
        "rdzv-id": place.run_id,
        "rdzv-conf": f"join_timeout={_JOIN_SECONDS}",
        "status-line": "never",
        "shutdown-timeout": "2",
    }
    given = [f"--{name}={value}" for name, value in options.items()]
    worker = [_WORKER, "--gpus"] if place.with_gpus else [_WORKER]
    agent = ["-P", "-m", "torshrun", *given, "-m", *worker]
    return [sys.executable, "-P", "-c", _ENDS_WITH_US, *agent]


def _environ(place: Place, key: bytes, environ: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without what would configure a job differently."""
    others = {variable for option in OPTIONS for variable in option.environment}
    places = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORSH_SECRET"}
    kept = {name: environ[name] for name in environ if name not in others | places}
    secret = derive(key, "doctor's job", place.run_id).hex()
    safe = {"PYTHONSAFEPATH": "1"}  # files in the directory must not shadow modules
    return {**kept, **safe, **({"TORSH_SECRET": secret} if secret else {})}


def _stop(process: subprocess.Popen[str]) -> str:
    """Stop the agent with its worker, and return its output."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=_STOP_SECONDS)[0]
    os.killpg(process.pid, signal.SIGKILL)  # the keeper ends the worker
    return process.communicate()[0]


def _result(code: int, said: str) -> Checked:
    reports = re.findall(r"network check: (\{.*\})", said)
    if code or not reports:
        return Checked(f"torshrun ended with code {code}: {_last(said)}", 0.0, 0.0)
    try:
        report = json.loads(reports[-1])
        return Checked("", float(report["latency"]), float(report["rate"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Checked(f"the worker's report cannot be read: {_last(said)}", 0.0, 0.0)


def _last(said: str) -> str:
    """Return the last line of the output that explains the failure."""
    lines = [printable(line).strip(" |") for line in said.splitlines() if line.strip()]
    found = ([line for line in lines if kind.search(line)] for kind in _TELLING)
    telling = next(filter(None, found), ["it said nothing"])
    return telling[-1][:_MOST_SAID]
