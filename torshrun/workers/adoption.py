"""Finds the copy of a worker that was killed, which takes its place: torshrun --recover."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from torsh_runtime.recover.page import newest_copy
from torshrun.procfs import read_stat
from torshrun.workers.processes import kill
from torshrun.workers.worker import Worker

BOUND = 30.0
"""Seconds until the system has freed the memory of a dead worker, as then the copy is an orphan."""
MOMENT = 1.0
"""Seconds until a copy that its worker could not note any more has noted itself."""
_PAUSE = 0.001
"""Seconds between two looks."""


async def orphaned_copy(
    status_file: str, local_rank: int, keeper: int, workers: Collection[int]
) -> int:
    """Wait until the newest copy of a dead worker is a child of the keeper, and return its pid.

    Returns 0 if there is none. `workers` are the pids of what is no copy any more.
    """
    now = asyncio.get_running_loop().time
    begun = now()
    while now() < begun + BOUND:
        pid = newest_copy(status_file, local_rank)
        found = read_stat(pid) if pid and pid not in workers else None
        is_there = found is not None and found.state != "Z"
        if found is not None and is_there and found.parent == keeper:
            return pid
        if not is_there and now() > begun + MOMENT:
            break
        await asyncio.sleep(_PAUSE)
    return 0


def end_copy(status_file: str, worker: Worker, keeper: int) -> None:
    """Kill the newest copy of a worker that has ended by itself, and that nobody replaces."""
    pid = newest_copy(status_file, worker.local_rank)
    found = read_stat(pid) if pid else None
    if found is not None and found.parent in (worker.pid, keeper):
        kill(pid)
