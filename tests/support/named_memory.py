"""Files in /dev/shm that a test of this process may have left there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")
"""Where the processes of all runs on this machine can name memory that they share."""


def named_memory() -> set[str]:
    """Return the paths of this user's files there that have torsh in their names."""
    found = set()
    for entry in os.scandir(SHARED):
        with suppress(OSError):  # it was removed meanwhile
            if "torsh" in entry.name and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.add(entry.path)
    return found


def held_by_others(paths: set[str]) -> set[str]:
    """Return those of the paths that processes hold which neither this one nor a process that it
    started has started: those of another run, or of another of pytest's processes.
    """
    if not paths:
        return set()
    own = {os.getpid(), *(each.pid for each in psutil.Process().children(recursive=True))}
    others = (pid for pid in psutil.pids() if pid not in own)
    return {path for pid in others for path in paths.intersection(_held(pid))}


def _held(pid: int) -> Iterator[str]:
    """Yield the paths of all files that a process has open or mapped; none if it has ended."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield str(Path(f"/proc/{pid}/fd/{name}").readlink())
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            yield line.partition("/")[1] + line.partition("/")[2]
