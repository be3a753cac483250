"""Examines processors and memory, and what a container or a scheduler leaves of them to this
process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torshrun import cgroups
from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.procfs import ROOT, read_text
from torshrun.text import parse_ranges, ranges, size
from torshrun.topology.cpus import allowed_cpus, cpu_quota
from torshrun.topology.numa import read_topology

_SMALL_SHM = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    allowed: frozenset[int]
    """Processors that this process may use."""
    online: int
    """The number of processors, or 0 if the kernel does not report it."""
    quota: float
    """The number of processors whose time it may use. Infinite without a limit."""
    nodes: int
    """The number of NUMA nodes of those processors."""
    memory: int
    """Bytes of the machine, or 0 if unknown, as with the next two."""
    available: int
    memory_limit: int
    """Bytes: the strictest limit of its control groups. 0 is none."""
    shm: int | None
    """Bytes of /dev/shm, or None if it does not exist."""
    shm_free: int
    shm_is_writable: bool


def gather(root: Path = ROOT) -> Machine:
    allowed = allowed_cpus()
    meminfo = read_text(root / "proc/meminfo")
    shm = _file_system(root / "dev/shm")
    return Machine(
        allowed=allowed,
        online=len(parse_ranges(read_text(root / "sys/devices/system/cpu/online"))),
        quota=cpu_quota(root),
        nodes=len({cpu.node for cpu in read_topology(allowed, root)}),
        memory=_kilobytes(meminfo, "MemTotal"),
        available=_kilobytes(meminfo, "MemAvailable"),
        memory_limit=_memory_limit(root),
        shm=shm and shm[0],
        shm_free=shm[1] if shm else 0,
        shm_is_writable=os.access(root / "dev/shm", os.W_OK | os.X_OK),
    )


def _kilobytes(text: str, name: str) -> int:
    lines = (line.split() for line in text.splitlines() if line.startswith(f"{name}:"))
    return next((int(words[1]) << 10 for words in lines if words[1:] and words[1].isdecimal()), 0)


def _memory_limit(root: Path) -> int:
    """Return the strictest memory limit of the control groups, in bytes. 0 is none."""
    found = (
        cgroups.memory_limit(cgroup) for path in cgroups.find("memory", root) for cgroup in path
    )
    return min(filter(None, found), default=0)


def _file_system(path: Path) -> tuple[int, int] | None:
    """Return the size and the free space of the file system, in bytes."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def check(facts: Machine) -> Iterator[Finding]:
    yield _processors(facts)
    yield _quota(facts)
    yield ok("NUMA nodes", str(facts.nodes))
    yield _memory(facts)
    yield _shm(facts)


def _processors(facts: Machine) -> Finding:
    mine, all_of_them = len(facts.allowed), facts.online
    value = f"{mine} of {all_of_them or mine} ({','.join(ranges(facts.allowed))})"
    if all_of_them and mine * 2 <= all_of_them:
        return note(
            "processors",
            value,
            "This process may use only a part of them (taskset, a scheduler's binding, a cpuset): "
            "ask for more if that is not intended.",
        )
    return ok("processors", value)


def _quota(facts: Machine) -> Finding:
    if math.isinf(facts.quota):
        return ok("processor time", "no quota")
    value = f"{facts.quota:g} processors' time"
    if facts.quota < len(facts.allowed):
        return note(
            "processor time",
            value,
            "A control group limits it (docker --cpus, a limit of Kubernetes): start at most "
            f"{max(1, int(facts.quota))} workers here (--nproc-per-node cpu does), or raise it.",
        )
    return ok("processor time", value)


def _memory(facts: Machine) -> Finding:
    if not facts.memory:
        return ok("memory", "unknown: /proc/meminfo cannot be read")
    value = f"{size(facts.memory)}, {size(facts.available)} available"
    if facts.memory_limit and facts.memory_limit < facts.memory:
        value += f"; limited to {size(facts.memory_limit)} by a control group"
    if facts.available < facts.memory / 20:
        return warning(
            "memory", value, "End what fills it (ps aux --sort -rss), or workers will be killed."
        )
    return ok("memory", value)


def _shm(facts: Machine) -> Finding:
    advice = (
        "torshrun itself needs none of it, but torch's DataLoader and NCCL do: give the container "
        "more (docker --shm-size 8g; in Kubernetes an emptyDir with medium: Memory at /dev/shm)."
    )
    if facts.shm is None:
        return warning("/dev/shm", "does not exist", advice)
    value = f"{size(facts.shm)}, {size(facts.shm_free)} free"
    if not facts.shm_is_writable:
        return warning("/dev/shm", f"{value}, not writable for this user", advice)
    if facts.shm_free == 0 and facts.shm:
        full = "Delete what was left behind there (ls -l /dev/shm): nothing more fits."
        return problem("/dev/shm", value, full)
    return warning("/dev/shm", value, advice) if facts.shm < _SMALL_SHM else ok("/dev/shm", value)
