"""Looks at workers just before they are asked to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torshrun.health.pages import WorkerStatus
from torshrun.health.waits import Wait, wait_of
from torshrun.procfs import UNREAD, blocked_writers, ended_badly, rank_of
from torshrun.signals import exit_code, signal_name
from torshrun.text import printable
from torshrun.workers.worker import Worker

if TYPE_CHECKING:  # at the start it would take time
    pass


class Moment(NamedTuple):
    """Holds what was seen of the workers just before they were asked to stop."""

    at: float
    """Time of the look, on the monotonic clock."""
    statuses: Mapping[int, WorkerStatus]
    """Status page of each rank."""
    states: Mapping[int, str]
    """The state of each rank's process, as in /proc."""
    children: Mapping[int, str]
    """Descriptions of how processes that ranks had started ended badly without their notice."""
    waits: Mapping[int, tuple[Wait, int]]
    """Waits of each rank's main thread in the kernel, with the rank that holds what it waits for.

    The latter is -1 if no rank of this node is known to hold it.
    """
    operations: bytes
    """A copy of the workers' recordings; b"" is none."""


NO_WAIT: tuple[Wait | None, int] = None, -1


def waits_of(workers: Sequence[Worker]) -> Mapping[int, tuple[Wait, int]]:
    alive = {worker.pid: worker.rank for worker in workers if worker.alive}
    found = ((rank, wait_of(pid)) for pid, rank in alive.items())
    return {rank: (wait, rank_of(wait.holder, alive)) for rank, wait in found if wait}


def status_words(status: int) -> str:
    """Return "killed by SIGKILL", or "exit code 1"."""
    signo = status & 0x7F
    return f"killed by {signal_name(signo)}" if signo else f"exit code {exit_code(status)}"


def child_of(pid: int) -> str:
    """Describe what is wrong with a process that the worker `pid` started; "" if nothing is."""
    for name, status in ended_badly(pid):
        how = f"{'was ' if status & 0x7F else ''}{status_words(status)}"
        return f"a process that it had started ({printable(name)}) has ended: {how}"
    for name, child in blocked_writers(pid):
        return f"a process that it had started ({printable(name)}, pid {child}) {UNREAD}"
    return ""
