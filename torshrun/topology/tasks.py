"""Computes how many more processes and threads may be started."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from torshrun.cgroups import find
from torshrun.procfs import ROOT


def available_tasks(root: Path = ROOT) -> int:
    """Return the number that may still start, by this user and in the limited cgroups."""
    left = [sys.maxsize]
    for path in find("pids", root):
        for cgroup in path:
            most = cgroup.number("pids.max")
            left += [] if most is None else [most - (cgroup.number("pids.current") or 0)]
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.getuid() and most != resource.RLIM_INFINITY:  # root is exempt from the limit
        left.append(most - _tasks_of(os.getuid(), root / "proc"))
    return max(0, min(left))


def _tasks_of(user: int, proc: Path) -> int:
    count = 0
    for process in proc.glob("[1-9]*"):
        with suppress(OSError):
            stat = (process / "task").stat()
            count += stat.st_nlink - 2 if stat.st_uid == user else 0
    return count
