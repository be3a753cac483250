"""Single processes: who they are, whose children, and their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torshrun import procfs


@dataclass(frozen=True, slots=True)
class Unkillable:
    """A process that outlived SIGKILL: it waits for the kernel."""

    pid: int
    name: str
    """Of its program; "" if it has ended since."""
    state: str
    """As ps has it, mostly "D"; "" if it has ended since."""

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, state {self.state})" if self.state else str(self.pid)


def unkillable(pids: Iterable[int]) -> tuple[Unkillable, ...]:
    """What is known about these processes."""
    found = ((pid, procfs.read_stat(pid)) for pid in pids)
    return tuple(Unkillable(pid, *(stat[:2] if stat else ("", ""))) for pid, stat in found)


def children() -> tuple[int, ...]:
    """Pids of this process's children, those that have ended but were not waited for included."""
    if not Path("/proc/thread-self/children").exists():  # a kernel built without it
        return _scanned_children()
    return tuple(procfs.children(os.getpid()))


def _scanned_children() -> tuple[int, ...]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    found = ((pid, procfs.read_stat(pid)) for pid in pids)
    return tuple(pid for pid, stat in found if stat and stat.parent == os.getpid())


def kill(pid: int) -> None:
    """SIGKILL a process, if it is there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def reap_all() -> bool:
    """Reap the children that have ended; whether any are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def wait_for(pid: int, timeout: float) -> bool:
    """Reap this child; whether it had ended within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
