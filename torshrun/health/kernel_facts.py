"""The kernel's account of why a worker was slow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torshrun.cgroups import Cgroup, field, find
from torshrun.procfs import ROOT, read_text

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_FAULTS, _READ = 9, 39
"""Places in /proc/<pid>/stat behind the name, from 0: majflt, delayacct_blkio_ticks."""


class Facts(NamedTuple):
    """Holds what has delayed a process's main thread since it began; seconds, but for `faults`."""

    queued: float = 0.0
    """Seconds in which it was ready to run, but others had the processor."""
    throttled: float = 0.0
    """Seconds in which its control groups had used up their quota of the processor."""
    faults: float = 0.0
    """Pages that were read from a disk for it."""
    read: float = 0.0
    """Seconds in which it waited for a disk; the kernel counts them only with delay accounting."""

    def since(self, before: Facts) -> Facts:
        return Facts(*(max(now - then, 0.0) for now, then in zip(self, before, strict=True)))


class Process:
    """Represents a process whose facts are read now and then."""

    def __init__(self, pid: int, root: Path = ROOT) -> None:
        self._pid, self._root = pid, root
        self._named = ""
        self._groups: list[Cgroup] = []

    def facts(self) -> Facts:
        """Return the facts, with zeros for what cannot be read: the process may have ended."""
        folder = self._root / f"proc/{self._pid}"
        waits = read_text(folder / "schedstat").split()
        fields = read_text(folder / "stat").rpartition(")")[2].split()
        return Facts(
            queued=_number(waits, 1) / 1e9,
            throttled=self._throttled(read_text(folder / "cgroup")),
            faults=float(_number(fields, _FAULTS)),
            read=_number(fields, _READ) * _TICK,
        )

    def _throttled(self, named: str) -> float:
        """Return the seconds of the one of its control groups that had to wait longest."""
        if named != self._named:  # to look for them takes time
            self._named = named
            found = find("cpu", self._root, process=str(self._pid))
            self._groups = [group for path in found for group in path]
        return max(map(_throttled, self._groups), default=0.0)


def _throttled(group: Cgroup) -> float:
    told = group.text("cpu.stat")
    nanoseconds, microseconds = field(told, "throttled_time"), field(told, "throttled_usec")
    return (nanoseconds or 0) / 1e9 + (microseconds or 0) / 1e6


def _number(fields: Sequence[str], place: int) -> int:
    text = fields[place] if place < len(fields) else ""
    return int(text) if text.isdecimal() else 0
