"""What the kernel says about processes: CPU time of a worker with its descendants, its state."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")


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
    parts = [_stat(each) for each in tree(pid)]
    return Usage(sum(cpu for cpu, _ in parts), parts[0][1] if parts else "")


def orphans(guardian: int, workers: Collection[int]) -> float:
    """Seconds of CPU of the guardian's children, with their descendants, that are no workers."""
    children = _children(guardian) if guardian > 0 else []
    return sum(read(child).cpu for child in children if child not in workers)


def tree(pid: int) -> Iterator[int]:
    """The process, if it has a positive pid, and its descendants, parents first."""
    waiting = deque([pid] if pid > 0 else [])
    while waiting:
        yield waiting[0]
        waiting.extend(_children(waiting.popleft()))


def _stat(pid: int) -> tuple[float, str]:
    """Seconds of CPU and the state; (0, "") when there is no such process."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 15:
        return 0.0, ""
    return sum(map(int, fields[11:15])) / _TICKS, fields[0].decode()


def _children(pid: int) -> list[int]:
    """Children of all threads; a kernel without CONFIG_PROC_CHILDREN tells of none."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  (pathlib costs more)
    except OSError:
        return []
    listed = (_read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for line in listed for child in line.split()]


def _read(path: str) -> bytes:
    """A small file; nothing if the process has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
