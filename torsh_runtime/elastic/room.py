"""Determines how much memory this process can still take before the kernel kills a process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files by version of control groups: limit, usage, and reclaimable usage."""


def available_memory(root: Path = Path("/")) -> int:
    """Return the memory in bytes that the machine and this process's control groups have left."""
    told = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    found = [int(told[1]) << 10] if told else []
    for version, folder in _groups(root):
        limit, used, cached = _FILES[version]
        texts = _text(folder / limit), _text(folder / used)
        if all(text.strip().isdecimal() for text in texts):  # else "max", or nothing
            spare = re.search(rf"^{cached} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
            most, now = map(int, texts)
            found.append(max(most - now + (int(spare[1]) if spare else 0), 0))
    return min(found, default=1 << 62)


def _groups(root: Path) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of each control group with its ancestors, at the usual mount
    points."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        version = 1 if controllers else 2
        if version == 1 and "memory" not in controllers.split(","):
            continue
        top = root / ("sys/fs/cgroup/memory" if version == 1 else "sys/fs/cgroup")
        below = PurePosixPath(name.lstrip("/"))
        for part in (below, *below.parents):
            if ".." not in part.parts:
                yield version, top / part


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
