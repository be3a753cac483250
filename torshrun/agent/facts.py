"""What the machine itself knows of what a worker could not have: a port, or space on a disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torshrun.failure.kinds import Kind
from torshrun.failure.named import path_in, port_in
from torshrun.procfs import holder
from torshrun.text import printable, size

_NEARLY_FULL = 0.01
_LITTLE = 1 << 20


def facts_about(kind: Kind, said: str, ranks: Mapping[int, int]) -> str:
    """In a sentence, who holds the port or which file system is full that these words speak of; ""
    is nothing known. `ranks` are those of this node, by pid.
    """
    if kind is Kind.ADDRESS_IN_USE:
        port = port_in(said)
        name, pid = holder(port) if port else ("", 0)
        whose = f"rank {ranks[pid]}, " if pid in ranks else ""
        return f"Port {port} is held by {whose}{printable(name)} (pid {pid})." if pid else ""
    if kind in (Kind.DISK_FULL, Kind.SHARED_MEMORY):
        return " ".join(filter(None, map(_if_full, _places(said))))
    return ""


def _places(said: str) -> list[Path]:
    """Where file systems are mounted that it may have written to."""
    named = path_in(said)
    paths = [named] if named else [os.getcwd(), tempfile.gettempdir(), "/dev/shm"]  # noqa: PTH109
    return list(dict.fromkeys(map(_mount, paths)))


def _mount(path: str) -> Path:
    place = Path(path).absolute()
    return next((each for each in (place, *place.parents) if each.is_mount()), Path("/"))


def _if_full(mount: Path) -> str:
    try:
        found = os.statvfs(mount)
    except OSError:
        return ""
    free, whole = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if whole and free < max(_LITTLE, _NEARLY_FULL * whole):
        return f"The file system at {printable(str(mount))} has {size(free)} free of {size(whole)}."
    if found.f_files and not found.f_favail:
        return f"The file system at {printable(str(mount))} has no inode free (df -i)."
    return ""
