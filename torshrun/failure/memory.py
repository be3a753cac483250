"""Detects whether the kernel killed something for lack of memory: its counters, before and after.

A cgroup counts the kills of its own processes: memory.events in version 2, memory.oom_control in
version 1. Where neither can be read, /proc/vmstat counts them for the whole machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torshrun.cgroups import Cgroup, field, find, memory_limit
from torshrun.procfs import ROOT, read_text

if TYPE_CHECKING:
    from torshrun.failure.exits import OomEvidence


class MemoryWatch:
    """Compares the kernel's counters, found below `root`, with what they were when it was made."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        found = find("memory", root)
        self._cgroups = next((path for path in found if _kills(path[0]) is not None), [])
        self._kills = self._count()
        self._times_full = [_times_full(cgroup) for cgroup in self._cgroups]

    def evidence(self) -> OomEvidence | None:
        """Return what has happened since; None if nothing did. May be called repeatedly."""
        if self._count() <= self._kills:
            return None
        from torshrun.failure.exits import OomEvidence

        pairs = zip(self._cgroups, self._times_full, strict=True)
        hit = (each for each, before in pairs if memory_limit(each) and _times_full(each) > before)
        full = next(hit, None)  # the innermost with a limit that could not be kept since
        return OomEvidence(
            ours=bool(self._cgroups),
            cgroup=full.name if full else "",
            limit=memory_limit(full) if full else 0,
        )

    def _count(self) -> int:
        if self._cgroups:
            return _kills(self._cgroups[0]) or 0
        return field(read_text(self._root / "proc/vmstat"), "oom_kill") or 0


def _kills(cgroup: Cgroup) -> int | None:
    """Return how many of its processes were ever killed for lack of memory; None if unknown."""
    file = "memory.events" if cgroup.version == 2 else "memory.oom_control"
    return field(cgroup.text(file), "oom_kill")


def _times_full(cgroup: Cgroup) -> int:
    if cgroup.version == 1:
        return cgroup.number("memory.failcnt") or 0
    local = field(cgroup.text("memory.events.local"), "oom")
    return local if local is not None else field(cgroup.text("memory.events"), "oom") or 0
