"""Computes how much memory is left for processes of this machine or container."""

from __future__ import annotations

import re
from pathlib import Path

from torshrun.cgroups import Cgroup, field, find, memory_limit
from torshrun.procfs import ROOT, read_text


def available_memory(root: Path = ROOT) -> int:
    """Return the bytes that are left on the machine, and in each limited cgroup of this process."""
    told = re.search(r"^MemAvailable: +(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    left = [int(told[1]) << 10] if told else []
    for path in find("memory", root):
        left += [_left(cgroup) for cgroup in path if memory_limit(cgroup)]
    return max(0, min(left, default=1 << 62))


def _left(cgroup: Cgroup) -> int:
    file = "memory.current" if cgroup.version == 2 else "memory.usage_in_bytes"
    used = cgroup.number(file) or 0
    cached = (
        field(cgroup.text("memory.stat"), "inactive_file") or 0
    )  # the kernel frees it when needed
    return memory_limit(cgroup) - max(0, used - cached)
