"""Finds the processors that this process may use, and how much of their time."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

from torshrun import cgroups
from torshrun.cgroups import Cgroup
from torshrun.procfs import ROOT, read_text
from torshrun.text import parse_ranges


def allowed_cpus() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def cpu_quota(root: Path = ROOT) -> float:
    """Return how many processors' time the strictest cgroup allows. Infinite without a limit."""
    paths = cgroups.find("cpu", root)
    return min((_quota(cgroup) for path in paths for cgroup in path), default=math.inf)


def allocated_cpus(environ: Mapping[str, str]) -> float:
    """Return how many processors Slurm has given the job here. Infinite if it says nothing.

    Slurm need not enforce the number.
    """
    number = environ.get("SLURM_CPUS_ON_NODE", "")
    return float(number) if re.fullmatch(r"[1-9][0-9]{0,5}", number) else math.inf


def told_of_binding(environ: Mapping[str, str], allowed: frozenset[int], root: Path = ROOT) -> str:
    """Return a text for people if srun has bound this task to one core of several, else "".

    A step that may use one thread of each of its cores is bound correctly.
    """
    allocated = allocated_cpus(environ)
    folder = root / f"sys/devices/system/cpu/cpu{min(allowed)}/topology"
    core = parse_ranges(read_text(folder / "thread_siblings_list")) or {min(allowed)}
    is_step = "SLURM_STEP_ID" in environ and math.isfinite(allocated)
    if not is_step or not allowed <= core or allocated <= len(core):
        return ""
    return (
        f"all workers here share {len(allowed)} of the {allocated:g} processors that the step has: "
        f"Slurm binds a task to one core unless srun is told how many it needs, and srun does not "
        f"take that from sbatch's --cpus-per-task: export SRUN_CPUS_PER_TASK={allocated:g} first, "
        f"or srun --cpu-bind=none"
    )


def usable_cpus(environ: Mapping[str, str], root: Path = ROOT) -> int:
    """Return how many processes can use a processor each all the time, at least 1.

    A quota is rounded down: workers run in step, so all would wait for one that the kernel
    throttles.
    """
    return max(1, int(min(len(allowed_cpus()), cpu_quota(root), allocated_cpus(environ))))


def _quota(cgroup: Cgroup) -> float:
    """Return the CPU time per period, in processors. Infinite without a limit (-1 or "max")."""
    files = ("cpu.max",) if cgroup.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    text = " ".join(map(cgroup.text, files))
    found = re.fullmatch(r"([1-9][0-9]*)\s+([1-9][0-9]*)\s*", text)
    return int(found[1]) / int(found[2]) if found else math.inf
