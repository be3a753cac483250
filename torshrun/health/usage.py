"""What the kernel says about processes: CPU time of a worker with its descendants, its state."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torshrun.procfs import children, read_stat


@dataclass(frozen=True, slots=True)
class Usage:
    """A worker and its descendants at one moment."""

    cpu: float
    """Seconds of CPU that they have used, with those of children that have ended."""
    state: str
    """The worker's own state as in /proc/<pid>/stat: R, S, D, T (stopped), t (held by a debugger),
    Z; "" when there is no such process."""


def read(pid: int) -> Usage:
    """The usage of this process and its descendants."""
    stats = [read_stat(each) for each in tree(pid)]
    own = stats[0] if stats else None
    return Usage(sum(stat.cpu for stat in stats if stat), own.state if own else "")


def orphans(guardian: int, workers: Collection[int]) -> float:
    """Seconds of CPU of the guardian's children, with their descendants, that are no workers."""
    found = children(guardian) if guardian > 0 else []
    return sum(read(child).cpu for child in found if child not in workers)


def tree(pid: int) -> Iterator[int]:
    """The process, if it has a positive pid, and its descendants, parents first."""
    waiting = deque([pid] if pid > 0 else [])
    while waiting:
        yield waiting[0]
        waiting.extend(children(waiting.popleft()))
