"""One rank of one run: `worker.py PLAN.json`, started by the library's own launcher.

The plan names the library, the operation and the sizes; each rank leaves its figures in
`rank-<n>.json` beside it. Runs in the library's own environment.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from libraries import Array, Call, Library, connect

_BLOCK = 1 << 20
_PERIOD = 251
_WARM_UP_SHARE = 0.2
_PROBE_TIMEOUT = 60.0


class Worker:
    """Measures one size after the other on one connected library."""

    def __init__(self, library: Library, plan: dict[str, Any], folder: Path) -> None:
        self._library, self._plan, self._folder = library, plan, folder
        self._operation: str = plan["operation"]
        self._shared = np.zeros(2, np.float32)
        self._share = library.bind("all_reduce", self._shared, self._shared.copy())
        self._probes = 0

    def measure(self, nbytes: int) -> dict[str, Any]:
        """Check the result once, then time the operation between two looks at the machine."""
        full, part = self._buffers(nbytes)
        call = self._library.bind(self._operation, full, part)
        self._check(call, full, part)
        full.fill(0)  # sums of zeros stay zeros: no overflow, no denormals, however often
        before = self._probe()
        times = self._timed(call, self._iterations(call))
        figures = {"bytes": nbytes, "before_ns": before, "after_ns": self._probe()}
        return figures | times

    def _buffers(self, nbytes: int) -> tuple[Array, Array]:
        """Touched arrays: nbytes, rounded up to an element per rank, and this rank's share."""
        ranks = self._library.world_size
        count = -(-nbytes // 4 // ranks) * ranks
        whole, share = np.empty(count, np.float32), np.empty(count // ranks, np.float32)
        whole.fill(0)
        share.fill(0)
        return whole, share

    def _check(self, call: Call, full: Array, part: Array) -> None:
        """Run once on a known pattern; a wrong result ends the whole benchmark."""
        rank, ranks = self._library.rank, self._library.world_size
        if self._operation == "barrier" or self._plan["library"] == "memcpy":
            call()
            return
        offset = rank * part.size
        total = ranks * (ranks + 1) / 2
        summed = self._operation in ("all_reduce", "reduce_scatter")
        if self._operation != "broadcast" or rank == 0:
            fill(full, 0, rank + 1 if summed else 1)
        if self._operation == "all_gather":
            full.fill(0)
            fill(part, offset, 1)
        call()
        result, start = (part, offset) if self._operation == "reduce_scatter" else (full, 0)
        verify(result, start, total if summed else 1, f"rank {rank}, {self._operation}")

    def _iterations(self, call: Call) -> int:
        """Warm up, then choose how many calls fill the time; all ranks take rank 0's choice."""
        budget = self._plan["seconds"]
        warm = self._agreed(_WARM_UP_SHARE * budget / typical(call, 3))
        return self._agreed(budget / 2 / typical(call, warm))

    def _agreed(self, wanted: float) -> int:
        low, high = self._plan["iterations"]
        mine = min(max(int(wanted), low), high)
        self._shared[:] = mine if self._library.rank == 0 else 0
        if self._library.world_size > 1:
            self._share()
        return int(self._shared[0])

    def _timed(self, call: Call, iterations: int) -> dict[str, Any]:
        times = sorted(each(call, iterations))
        mean = loop(call, iterations)
        return {
            "iterations": iterations,
            "median_us": statistics.median(times) / 1e3,
            "mean_us": mean * 1e6,
            "min_us": times[0] / 1e3,
            "p10_us": times[iterations // 10] / 1e3,
            "p90_us": times[iterations * 9 // 10] / 1e3,
            "max_us": times[-1] / 1e3,
        }

    def _probe(self) -> float | None:
        """Rank 0 measures the round trip while all others sleep; every rank gets the answer."""
        if self._plan["pingpong"] is None:
            return None
        self._probes += 1
        answer = self._folder / f"probe-{self._probes}"
        if self._library.rank == 0:
            time.sleep(0.005)  # the others may still be on their way out of the last operation
            _publish(answer, subprocess.run(self._plan["pingpong"], stdout=-1, timeout=30).stdout)
        deadline = time.monotonic() + _PROBE_TIMEOUT
        while not answer.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 did not measure the machine's state")
            time.sleep(0.001)
        text = answer.read_text()
        return float(text) if text else None


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


def fill(array: Array, start: int, scale: float) -> None:
    """Write scale times the pattern, whose elements are small whole numbers: exact in float32."""
    for first in range(0, array.size, _BLOCK):
        piece = array[first : first + _BLOCK]
        piece[:] = _pattern(start + first, piece.size, scale)


def verify(array: Array, start: int, scale: float, where: str) -> None:
    """End this rank loudly unless the array holds scale times the pattern."""
    for first in range(0, array.size, _BLOCK):
        piece = array[first : first + _BLOCK]
        wrong = np.flatnonzero(piece != _pattern(start + first, piece.size, scale))
        if wrong.size:
            at = first + int(wrong[0])
            raise SystemExit(f"WRONG RESULT: {where}, {array.nbytes} bytes, element {at}")


def _pattern(start: int, count: int, scale: float) -> Array:
    return (np.arange(start, start + count) % _PERIOD * scale).astype(np.float32)


def _publish(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def main() -> None:
    path = Path(sys.argv[1])
    plan = json.loads(path.read_text())
    library = connect(plan["library"], plan["ranks"])
    worker = Worker(library, plan, path.parent)
    gc.disable()
    figures = [worker.measure(nbytes) for nbytes in plan["sizes"]]
    record = {"rank": library.rank, "figures": figures}
    _publish(path.with_name(f"rank-{library.rank}.json"), json.dumps(record).encode())
    library.close()


if __name__ == "__main__":
    main()
