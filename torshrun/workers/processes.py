"""Single processes: who they are, whose children, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from torshrun import procfs

_PR_SET_CHILD_SUBREAPER = 36


def named(pids: Iterable[int]) -> tuple[str, ...]:
    """Return descriptions of processes: "1234 (python3, state D)", or the pid if it is gone."""
    stats = ((pid, procfs.read_stat(pid)) for pid in pids)
    return tuple(
        f"{pid} ({stat.name}, state {stat.state})" if stat else str(pid) for pid, stat in stats
    )


def children() -> list[int]:
    """Return the pids of this process's children, also of those that ended but were not reaped."""
    if Path("/proc/thread-self/children").exists():
        return procfs.children(os.getpid())
    import psutil  # a kernel built without it: looks at all processes

    return [child.pid for child in psutil.Process().children()]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, so that kill_descendants finds them."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(bound: float) -> tuple[str, ...]:
    """Kill all descendants with SIGKILL, for `bound` seconds at most.

    Describe those that are left.
    """
    deadline = time.monotonic() + bound
    while pids := children():
        if time.monotonic() >= deadline:
            return named(pids)
        for pid in pids:
            kill(pid)
        reap_orphans()
        time.sleep(0.005)
    return ()


def reap_orphans(own: int = 0) -> None:
    """Reap children that have ended and that this process did not start.

    As process 1, or as a subreaper, it inherits those of others. `own`, which it did start, is left
    for wait_for().
    """
    flags = os.WEXITED | os.WNOHANG
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, flags | os.WNOWAIT)) and ended.si_pid != own:
            os.waitid(os.P_PID, ended.si_pid, flags)


def wait_for(pid: int, timeout: float) -> bool:
    """Reap this child, and return whether it had ended within `timeout` seconds."""
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
