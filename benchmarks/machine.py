"""Describes the machine under test and the state that it is in.

The round trip of a cache line between two CPUs differs several times over with where a virtual
machine's CPUs happen to run ("near" within one cache complex, "far" across), and the time of every
collective differs with it. Only runs of one state may be compared.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.processes import Program, RunError, run

NEAR, FAR, MIXED, UNKNOWN = "near", "far", "mixed", "unknown"
DEFAULT_THRESHOLD_NS = 200.0
"""Round trips below it are near, above it far, unless the values have a clearer gap elsewhere."""

_CLEAR_GAP = 1.8
_DISTURBED = 10.0


def threshold(observed: Iterable[float]) -> float:
    """Return the round trip in ns that separates near from far among the observed ones.

    The widest gap between neighbouring values decides if it is at least 1.8-fold and both sides
    have several values; otherwise it is DEFAULT_THRESHOLD_NS.
    """
    values = sorted(_undisturbed(observed))
    few = max(2, len(values) // 20)
    inner = values[few - 1 : len(values) - few + 1]
    gaps = [(high / low, (low * high) ** 0.5) for low, high in pairwise(inner)]
    ratio, middle = max(gaps, default=(0.0, 0.0))
    return middle if ratio >= _CLEAR_GAP else DEFAULT_THRESHOLD_NS


def classify(before: float | None, after: float | None, limit: float) -> str:
    """Return the state of a run from the round trips before and after it, in ns.

    None means that a round trip was not measured.
    """
    if before is None or after is None:
        return UNKNOWN
    if max(before, after) > _DISTURBED * limit:
        return MIXED
    states = {NEAR if value < limit else FAR for value in (before, after)}
    return states.pop() if len(states) == 1 else MIXED


def _undisturbed(observed: Iterable[float]) -> list[float]:
    """Return the values without those taken while another process held one of the CPUs."""
    values = list(observed)
    return [value for value in values if value <= _DISTURBED * min(values)]


def pingpong_command(cache: Path) -> list[str] | None:
    """Return the command that prints one round trip in ns, compiled once; None if that fails."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    compiler = shutil.which("cc")
    if len(cpus) < 2 or compiler is None:
        return None
    source = Path(__file__).with_name("pingpong.c")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    binary = cache / f"pingpong-{digest}"
    if not binary.exists():
        _compile(compiler, source, binary)
    return [str(binary), *map(str, cpus)]


def _compile(compiler: str, source: Path, binary: Path) -> None:
    binary.parent.mkdir(parents=True, exist_ok=True)
    fresh = binary.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-pthread", "-o", str(fresh), str(source)]
    run(Program(command, cwd=binary.parent), timeout=60)
    fresh.replace(binary)


def measure(pingpong: Sequence[str] | None) -> float | None:
    """Return one round trip in ns; None if it cannot be measured."""
    if pingpong is None:
        return None
    try:
        return float(run(Program(pingpong, cwd=Path("/")), timeout=30))
    except (RunError, ValueError):
        return None


def describe() -> dict[str, object]:
    """Return a few facts about the machine, to record with the samples."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "allowed_cpus": sorted(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"
