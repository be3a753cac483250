"""Runs one rank of a run of calls: `rpc_worker.py PLAN.json`, started by spawn.py.

The plan names the library, the operation, the kind of argument and the sizes. Rank 0 calls, rank 1
serves. Each rank writes its figures to `rank-<n>.json` beside the plan; those of rank 1 have no
times.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rpc_libraries import (
    BURST,
    CALLS_AT_ONCE,
    IDLE,
    WINDOW,
    Call,
    Library,
    argument_of,
    connect,
    memory_kib,
)
from timing import Probe, publish, typical

_PAUSE = 0.002
_WARM_UP = 3
_PARTS = 10
"""Parts of a run's calls. Memory is measured after the first and the last one."""


class Caller:
    """Runs rank 0 of one library."""

    def __init__(self, library: Library, plan: dict[str, Any], probe: Probe) -> None:
        self._library, self._plan, self._probe = library, plan, probe
        self._operation: str = plan["operation"]

    def measure(self, nbytes: int) -> dict[str, Any]:
        """Return times of calls, in microseconds, between two probes of the machine."""
        before = self._probe.look()
        call = self._library.bind(self._operation, argument_of(self._plan["dtype"], nbytes))
        count = self._count(call)
        self._library.expect(2 * count)
        times = [self._timed(call) for _ in range(count)]
        begin = time.perf_counter()
        for _ in range(count):
            call()
        mean = (time.perf_counter() - begin) / count
        self._library.expect(0)
        each = CALLS_AT_ONCE if self._operation in (WINDOW, BURST) else 1
        return {
            "bytes": nbytes,
            "before_ns": before,
            "after_ns": self._probe.look(),
            "iterations": count * each,
            "median_us": statistics.median(times) / each * 1e6,
            "mean_us": mean / each * 1e6,
        }

    def _timed(self, call: Call) -> float:
        if self._operation == IDLE:
            time.sleep(_PAUSE)
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def _count(self, call: Call) -> int:
        """Warm up, and return how many calls fill the time."""
        self._library.expect(_WARM_UP)
        took = typical(call, _WARM_UP)
        took += _PAUSE if self._operation == IDLE else 0
        low, high = self._plan["iterations"]
        return min(max(int(self._plan["seconds"] / 2 / took), low), high)


def serve(library: Library, plan: dict[str, Any], probe: Probe, nbytes: int) -> dict[str, Any]:
    """Run rank 1 as long as rank 0 calls."""
    probe.look()
    library.serve(argument_of(plan["dtype"], nbytes))
    probe.look()
    return {"bytes": nbytes, "before_ns": None, "after_ns": None, "median_us": 0, "mean_us": 0}


def grown(calls: int) -> dict[str, int]:
    """Return by how many KiB the caller and its callee grow over many calls.

    Growth during the first part of the calls is not counted.
    """
    import torsh_runtime.rpc as rpc

    found = []
    for part in range(_PARTS):
        for _ in range(calls // _PARTS):
            rpc.rpc_sync("worker1", int)
        if part in (0, _PARTS - 1):
            found.append((memory_kib(), rpc.rpc_sync("worker1", memory_kib)))
    return {"caller": found[1][0] - found[0][0], "callee": found[1][1] - found[0][1]}


def main() -> None:
    path, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    plan = json.loads(path.read_text())
    library = connect(plan["library"], plan, path.parent)
    gc.disable()
    if "calls" in plan:
        gc.enable()
        found: Any = grown(plan["calls"]) if rank == 0 else {}
    else:
        probe = Probe(plan["pingpong"], path.parent, rank)
        caller = Caller(library, plan, probe)
        found = [
            caller.measure(nbytes) if rank == 0 else serve(library, plan, probe, nbytes)
            for nbytes in plan["sizes"]
        ]
    publish(path.with_name(f"rank-{rank}.json"), json.dumps({"figures": found}).encode())
    library.close()


if __name__ == "__main__":
    main()
