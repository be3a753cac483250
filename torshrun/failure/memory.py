"""Whether the kernel killed something for want of memory: its counters, before and after.

A cgroup counts the kills of its own processes: memory.events in version 2, memory.oom_control in
version 1. Where neither can be read, /proc/vmstat counts them for the whole machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from torshrun.failure.exits import OomEvidence

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Level:
    """One cgroup: this process's own, or one above it."""

    name: str
    folder: Path
    version: Literal[1, 2]

    def kills(self) -> int | None:
        """Processes of it that were killed for want of memory, ever; None if that is unknown."""
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        return _field(self.folder / file, "oom_kill")

    def times_full(self) -> int:
        """How often its limit could not be kept."""
        if self.version == 1:
            return _number(self.folder / "memory.failcnt")
        local = _field(self.folder / "memory.events.local", "oom")
        return local if local is not None else _field(self.folder / "memory.events", "oom") or 0

    def limit(self) -> int:
        """Bytes; 0 is none."""
        file = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        limit = _number(self.folder / file)
        return limit if limit < 1 << 62 else 0


class MemoryWatch:
    """Compares the kernel's counters with what they were when the watch was made.

    `root` is the directory in which proc and sys are found.
    """

    def __init__(self, root: str = "/") -> None:
        self._vmstat = Path(root, "proc/vmstat")
        self._levels = tuple(levels(Path(root)))
        self._kills = self._count()
        self._times_full = [level.times_full() for level in self._levels]

    def evidence(self) -> OomEvidence | None:
        """What happened since; None if nothing did. May be asked any number of times."""
        kills = self._count() - self._kills
        if kills <= 0:
            return None
        full = self._full()
        return OomEvidence(
            kills=kills,
            ours=bool(self._levels),
            cgroup=full.name if full else "",
            limit=full.limit() if full else 0,
        )

    def _count(self) -> int:
        counted = self._levels[0].kills() if self._levels else _field(self._vmstat, "oom_kill")
        return counted or 0

    def _full(self) -> Level | None:
        """The innermost cgroup with a limit that could not be kept since."""
        for level, before in zip(self._levels, self._times_full, strict=True):
            if level.limit() and level.times_full() > before:
                return level
        return None


def levels(root: Path) -> Iterator[Level]:
    """This process's cgroup for memory and those above it, innermost first; none if its kills
    are not counted.
    """
    for version, name in _memberships(root):
        seen = _visible(root, version, name)
        levels = [Level(above, folder, version) for above, folder in seen]
        if levels and levels[0].kills() is not None:
            yield from levels
            return


def _memberships(root: Path) -> Iterator[tuple[Literal[1, 2], str]]:
    """The names of this process's cgroups that may account for memory, from /proc/self/cgroup."""
    lines = _text(root / "proc/self/cgroup").splitlines()
    for _, controllers, name in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if "memory" in controllers.split(","):
            yield 1, name
        elif not controllers:
            yield 2, name


def _visible(root: Path, version: int, name: str) -> Iterator[tuple[str, Path]]:
    """Name and directory of a cgroup and of all above it that can be seen from here."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, options = line.partition(" - ")
        where, kind = fields.split(" "), options.split(" ")
        if len(where) < 5 or len(kind) < 3 or not _accounts(version, kind):
            continue
        top, point = _unescape(where[3]), _unescape(where[4])
        inner = PurePosixPath(name)
        if not inner.is_relative_to(top) or ".." in inner.parts:
            inner = PurePosixPath(top)  # a container that sees no more than its own
        below = inner.relative_to(top)
        for part in (below, *below.parents):
            yield str(PurePosixPath(top) / part), root / point.lstrip("/") / part
        return


def _accounts(version: int, kind: list[str]) -> bool:
    if version == 2:
        return kind[0] == "cgroup2"
    return kind[0] == "cgroup" and "memory" in kind[2].split(",")


def _unescape(path: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), path)


def _field(path: Path, name: str) -> int | None:
    """The number after `name` in a file of such lines; None if it is not there."""
    found = re.search(rf"^{name} (\d+)$", _text(path), re.MULTILINE)
    return int(found[1]) if found else None


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
