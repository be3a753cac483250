"""Looks up why a worker could not have a port, a lock, or space on a disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torshrun.failure.kinds import Kind
from torshrun.failure.ports_and_paths import path_in, port_in
from torshrun.procfs import holder, rank_of, read_stat
from torshrun.text import printable, size

_NEARLY_FULL = 0.01
_LITTLE = 1 << 20


class Fact(NamedTuple):
    """Holds a fact that the machine knows."""

    text: str = ""
    """In a sentence; "" is nothing."""
    rank: int = -1
    """The rank that holds the port or the lock; -1 is none that is known."""


def fact_about(kind: Kind, said: str, ranks: Mapping[int, int], port: int = 0) -> Fact:
    """Return who holds the port, or which file system is full, that these words mention.

    `ranks` are those of this node, by pid; `port` is the port that was wanted, in case the words do
    not contain it.
    """
    if kind in (Kind.DISK_FULL, Kind.SHARED_MEMORY):
        return Fact(" ".join(filter(None, map(_if_full, _places(said)))))
    port = port_in(said) or port
    if kind not in (Kind.ADDRESS_IN_USE, Kind.USAGE) or not port:
        return Fact()
    name, pid = holder(port)
    return _held(f"Port {port} is", name, pid, ranks.get(pid, -1)) if pid else Fact()


def fact_about_lock(path: str, pid: int, ranks: Mapping[int, int]) -> Fact:
    """Return who holds the lock of this file: a process that held it when a worker needed it."""
    stat, rank = read_stat(pid), rank_of(pid, ranks)
    return _held(f"The lock of {path} was", stat.name if stat else "a process", pid, rank)


def _held(what: str, name: str, pid: int, rank: int) -> Fact:
    whose = f"rank {rank}, " if rank >= 0 else ""
    return Fact(f"{what} held by {whose}{printable(name)} (pid {pid}).", rank)


def _places(said: str) -> list[Path]:
    """Return where file systems are mounted to which the worker may have written."""
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
