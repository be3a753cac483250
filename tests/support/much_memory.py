"""Processes that take long to end when they are killed, as those with gigabytes do."""

from __future__ import annotations

from pathlib import Path

HOLD = """
import mmap, os
def hold(times=600, size=16 << 20):
    file = os.memfd_create("much")
    os.ftruncate(file, size)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return [mmap.mmap(file, size, flags) for _ in range(times)]
"""
"""Source of `hold()`, whose result takes long to free: the same memory is mapped many times, whose
page tables are to be freed, and so needs little."""
_EXITING = 4


def runs(pid: int) -> bool:
    """Whether a process may run more of its program: it has not ended, nor begun to."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & _EXITING
