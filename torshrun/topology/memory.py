"""How much memory is left for processes of this machine or container."""

from __future__ import annotations

import re
from pathlib import Path

from torshrun.cgroups import Cgroup, field, find, memory_limit
from torshrun.procfs import ROOT, read_text


def available_memory(root: Path = ROOT) -> int:
    """Bytes: what the machine, and each cgroup with a limit that this process is in, has left."""
    told = re.search(r"^MemAvailable: +(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    left = [int(told[1]) << 10] if told else []
    for path in find("memory", root):
        left += [_left(cgroup) for cgroup in path if memory_limit(cgroup)]
    return max(0, min(left, default=1 << 62))


def _left(cgroup: Cgroup) -> int:
    file = "memory.current" if cgroup.version == 2 else "memory.usage_in_bytes"
    used = cgroup.number(file) or 0
    cached = field(cgroup.text("memory.stat"), "inactive_file") or 0  # given back when needed
    return memory_limit(cgroup) - max(0, used - cached)
