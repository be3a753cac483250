"""Times of calls, and the machine's state between them, as one rank sees them."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Call = Callable[[], object]
_PROBE_TIMEOUT = 60.0


def loop(call: Call, count: int) -> float:
    """Mean seconds of calls made back to back."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def each(call: Call, count: int) -> list[int]:
    """Nanoseconds of every single call."""
    clock, times = time.perf_counter_ns, [0] * count
    for index in range(count):
        start = clock()
        call()
        times[index] = clock() - start
    return times


def typical(call: Call, count: int) -> float:
    """Median seconds of one call."""
    return statistics.median(each(call, count)) / 1e9


def figures(call: Call, count: int) -> dict[str, float]:
    """What is kept of `count` single calls and as many made back to back, in microseconds."""
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
    """The round trip between two CPUs, measured by rank 0 while all other ranks sleep."""

    def __init__(self, pingpong: Sequence[str] | None, folder: Path, rank: int) -> None:
        """`folder` is one that all ranks see."""
        self._pingpong, self._folder, self._rank = pingpong, folder, rank
        self._looks = 0

    def look(self) -> float | None:
        """The round trip in ns, on every rank; None where it cannot be measured."""
        if self._pingpong is None:
            return None
        self._looks += 1
        answer = self._folder / f"probe-{self._looks}"
        if self._rank == 0:
            time.sleep(0.005)  # the others may still be on their way out of the last operation
            publish(answer, subprocess.run(self._pingpong, stdout=-1, timeout=30).stdout)
        deadline = time.monotonic() + _PROBE_TIMEOUT
        while not answer.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 did not measure the machine's state")
            time.sleep(0.001)
        text = answer.read_text()
        return float(text) if text else None


def publish(path: Path, content: bytes) -> None:
    """Let the file appear under its name only when it is complete."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)
