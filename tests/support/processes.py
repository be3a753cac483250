"""Finding the processes of one test, which carry a mark in their environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def soon(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether the condition comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_parked(pid: int) -> bool:
    """Whether it waits to be a worker, or imports for those that do."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        links = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return b"TORSH_PARK=" in environ and any("socket:" in link for link in links)


def marked(mark: str) -> dict[int, int]:
    """Living processes (zombies apart) with the mark in their environment, and their parents."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z" and mark.encode() in (process / "environ").read_bytes():
                found[int(process.name)] = int(parent)
        except (OSError, ValueError):
            continue
    return found
