"""The control groups that this process is in, of version 1 and 2, and the numbers they tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from torshrun.procfs import read_number, read_text


class Cgroup(NamedTuple):
    """Represents a cgroup in one hierarchy."""

    name: str
    folder: Path
    version: int
    """1 or 2."""

    def text(self, file: str) -> str:
        return read_text(self.folder / file)

    def number(self, file: str) -> int | None:
        return read_number(self.folder / file)


def field(text: str, name: str) -> int | None:
    """Return the number after `name` in such lines; None if the name is missing."""
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE | re.ASCII)
    return int(found[1]) if found else None


def find(controller: str, root: Path, process: str = "self") -> Iterator[list[Cgroup]]:
    """Yield a list of cgroups for each hierarchy with the controller.

    It has the cgroup of this process, or of the process of that pid, and those above, innermost
    first.
    """
    mounts = read_text(root / "proc/self/mountinfo").splitlines()
    lines = read_text(root / f"proc/{process}/cgroup").splitlines()
    for _, controllers, name in (line.split(":", 2) for line in lines if line.count(":") > 1):
        version = 1 if controllers else 2
        if not controllers or controller in controllers.split(","):
            found = (_mount(mount, version, controller) for mount in mounts)
            top, point = next(filter(None, found), ("", ""))
            if top:
                yield [*_path(PurePosixPath(name), top, root / point.lstrip("/"), version)]


def memory_limit(cgroup: Cgroup) -> int:
    """Return the bytes of memory that it may use; 0 is no limit."""
    file = "memory.max" if cgroup.version == 2 else "memory.limit_in_bytes"
    limit = cgroup.number(file) or 0
    return limit if limit < 1 << 62 else 0


def _mount(line: str, version: int, controller: str) -> tuple[str, str] | None:
    """Return which cgroup is mounted and where, if this line of mountinfo is of such a
    hierarchy.
    """
    fields, _, options = line.partition(" - ")
    where, kind = fields.split(" "), options.split(" ")
    if len(where) < 5 or len(kind) < 3:
        return None
    fits = kind[0] == "cgroup2"
    if version == 1:
        fits = kind[0] == "cgroup" and controller in kind[2].split(",")
    return (_unescape(where[3]), _unescape(where[4])) if fits else None


def _path(name: PurePosixPath, top: str, point: Path, version: int) -> Iterator[Cgroup]:
    if not name.is_relative_to(top) or ".." in name.parts:
        name = PurePosixPath(top)  # a container that sees no more than its own
    below = name.relative_to(top)
    for part in (below, *below.parents):
        yield Cgroup(str(PurePosixPath(top) / part), point / part, version)


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
