"""The processes of a run of pytest: waiting for them, their stacks, and the end of all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from support.run_record import STACKS_SIGNAL, Record

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_WATCHED = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_MOST_STACKS = 24
"""Processes that tests have started whose stacks are shown; a job may have hundreds."""


class Ended(Exception):
    """The run must be ended, for the reason that this says."""


def adopt_orphans() -> None:
    """Become the parent of whatever the run leaves behind, and have signals wait for `wait`."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)


def start(command: Sequence[str]) -> int:
    """Start the command, its words the same and its signals as usual; its pid."""
    return os.posix_spawn(command[0], command, os.environ, setsigmask=())


def wait(pid: int, deadline: float, late: str) -> int:
    """The exit code of this child. Ended, which says `late`, if it runs after the deadline (of
    time.monotonic); Ended as well if this process is told to end, by Ctrl-C if it comes twice, for
    pytest gets it too and ends by itself."""
    tolerated = {signal.SIGCHLD, signal.SIGINT}
    while (code := _reap(pid)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Ended(late)
        received = signal.sigtimedwait(_WATCHED, left)
        if received is None:
            continue
        if received.si_signo not in tolerated:
            raise Ended(f"got {signal.Signals(received.si_signo).name}")
        tolerated -= {received.si_signo} - {signal.SIGCHLD}
    return code


def _reap(awaited: int) -> int | None:
    """Reap all children that have ended; the exit code of this one if it is among them."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == awaited:
                return os.waitstatus_to_exitcode(ended[1])
    return None


def end_all(seconds: float = 10) -> list[str]:
    """SIGKILL whatever this process has started and what that has; what was there, in words."""
    deadline = time.monotonic() + seconds
    found: dict[int, str] = {}
    while (living := _descendants()) and time.monotonic() < deadline:
        for process in living:
            found.setdefault(process.pid, _described(process))
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _reap(0)
        time.sleep(0.01)
    return [*found.values()]


def stacks(record: Record) -> Iterator[str]:
    """What all threads of pytest's processes do, and those of Python that tests have started."""
    own, files = _descendants(), record.stacks()
    for process in own:
        if process.pid in files:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(STACKS_SIGNAL)
    for number, process in enumerate(own):
        yield f"---- {_described(process)}"
        if process.pid in files:
            yield _written(files[process.pid])
        elif number < _MOST_STACKS and "python" in _program(process):
            yield _by_py_spy(process.pid)


def _descendants() -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if _state(process) not in (psutil.STATUS_ZOMBIE, "")
    ]


def _state(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.status())
    return ""


def _program(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return Path(process.exe()).name
    return ""


def _described(process: psutil.Process) -> str:
    try:
        words = " ".join(process.cmdline())
        parent = process.ppid()
    except psutil.Error:
        return f"process {process.pid}, which has ended"
    return f"process {process.pid}, child of {parent} ({_state(process)}): {words[:200]}"


def _written(file: Path, seconds: float = 10) -> str:
    """What is in the file once it has grown no more for a moment."""
    deadline, size = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        time.sleep(0.1)
        before, size = size, file.stat().st_size
        if size and size == before:
            return file.read_text()
    return "it does not answer\n"


def _by_py_spy(pid: int) -> str:
    command = [Path(sys.executable).with_name("py-spy"), "dump", "--pid", str(pid)]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}\n"
    return told.stdout or told.stderr
