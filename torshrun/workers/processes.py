"""Single processes: who they are, whose children, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


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
    found = ((pid, _stat(str(pid))) for pid in pids)
    return tuple(Unkillable(pid, name, rest[0] if rest else "") for pid, (name, rest) in found)


def children() -> tuple[int, ...]:
    """Pids of this process's children, those that have ended but were not waited for included."""
    me = str(os.getpid())
    numbers = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return tuple(int(number) for number in numbers if _stat(number)[1][1:2] == [me])


def _stat(pid: str) -> tuple[str, list[str]]:
    """A process's name, and what /proc/PID/stat has from its state on; nothing if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return "", []
    name, _, rest = text.partition("(")[2].rpartition(")")  # the name itself may hold anything
    return name, rest.split()


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


def reap_orphans(own: int) -> None:
    """Reap children that have ended and that this process did not start: as process 1, or as a
    subreaper, it is given those of others. `own`, which it did start, stays for wait_for().
    """
    flags = os.WEXITED | os.WNOHANG
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, flags | os.WNOWAIT)) and ended.si_pid != own:
            os.waitid(os.P_PID, ended.si_pid, flags)


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
