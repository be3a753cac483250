"""The processors that this process may use, and for how much of the time."""

from __future__ import annotations

import math
import os
from pathlib import Path

from torshrun import cgroups
from torshrun.cgroups import Cgroup
from torshrun.procfs import ROOT


def allowed_cpus() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def cpu_quota(root: Path = ROOT) -> float:
    """How many processors' time the strictest of our cgroups leaves us; infinite if none does."""
    paths = cgroups.find("cpu", root)
    return min((_quota(cgroup) for path in paths for cgroup in path), default=math.inf)


def usable_cpus(root: Path = ROOT) -> int:
    """How many processes can use a processor each, all the time; at least 1.

    A quota is rounded down. Workers go in step, so that if three shared 2.5 processors, all would
    wait for the one that the kernel holds up.
    """
    return max(1, int(min(len(allowed_cpus()), cpu_quota(root))))


def _quota(cgroup: Cgroup) -> float:
    """Microseconds of CPU time per period of so many; -1 or "max" is no limit."""
    if cgroup.version == 2:
        quota, period = [*cgroup.text("cpu.max").split(), "", ""][:2]
    else:
        quota, period = (cgroup.text(f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    known = all(number.isascii() and number.isdecimal() for number in (quota, period))
    return int(quota) / int(period) if known and int(quota) and int(period) else math.inf
