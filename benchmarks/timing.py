"""Measures times of calls, and the machine's state between them, on one rank."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Call = Callable[[], object]
_PROBE_TIMEOUT = 60.0


def loop(call: Call, count: int) -> float:
    """Return the mean seconds of back-to-back calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def each(call: Call, count: int) -> list[int]:
    """Return the nanoseconds of every single call."""
    clock, times = time.perf_counter_ns, [0] * count
    for index in range(count):
        start = clock()
        call()
        times[index] = clock() - start
    return times


def typical(call: Call, count: int) -> float:
    """Return the median seconds of one call."""
    return statistics.median(each(call, count)) / 1e9


def figures(call: Call, count: int) -> dict[str, float]:
    """Return the figures of `count` single calls and as many back-to-back ones, in microseconds."""
    times = sorted(each(call, count))
    return {
        "iterations": count,
        "median_us": statistics.median(times) / 1e3,
        "mean_us": loop(call, count) * 1e6,
        "min_us": times[0] / 1e3,
        "p10_us": times[count // 10] / 1e3,
        "p90_us": times[count * 9 // 10] / 1e3,
        "max_us": times[-1] / 1e3,
    }


class Probe:
    """Measures the round trip between two CPUs on rank 0 while all other ranks sleep."""

    def __init__(self, pingpong: Sequence[str] | None, folder: Path, rank: int) -> None:
        """Take the command to run. `folder` must be accessible to all ranks."""
        self._pingpong, self._folder, self._rank = pingpong, folder, rank
        self._looks = 0

    def look(self) -> float | None:
        """Return the round trip in ns, on every rank; None if it cannot be measured."""
        if self._pingpong is None:
            return None
        self._looks += 1
        answer = self._folder / f"probe-{self._looks}"
        if self._rank == 0:
            time.sleep(0.005)  # the others may still be leaving the last operation
            publish(answer, subprocess.run(self._pingpong, stdout=-1, timeout=30).stdout)
        deadline = time.monotonic() + _PROBE_TIMEOUT
        while not answer.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 did not measure the machine's state")
            time.sleep(0.001)
        text = answer.read_text()
        return float(text) if text else None


def publish(path: Path, content: bytes) -> None:
    """Make the file appear under its name only when it is complete."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)
