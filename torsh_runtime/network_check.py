"""Checks the results of all_reduces and times them, and prints a report of one line to stdout.

`torshctl doctor --network-check` runs it on each of two nodes, under torshrun.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.bootstrap import destroy_process_group, init_process_group
from torsh_runtime.comm.functional import all_reduce, barrier
from torsh_runtime.comm.groups import get_rank, get_world_size

_SMALL_CALLS = 20
_FIRST_BYTES, _LAST_BYTES = 256 << 10, 64 << 20
_LONG_ENOUGH = 0.25
"""Seconds of an all_reduce that is long enough, so that no larger one is tried."""


def main() -> None:
    init_process_group("native")
    small = np.zeros(1)
    latency = median(_timed(small) for _ in range(_SMALL_CALLS))
    rate = _rate()
    report = json.dumps({"latency": latency, "rate": rate})
    sys.stdout.write(f"network check: {report}\n")
    destroy_process_group()


def _rate() -> float:
    """Return the bytes per second that each rank sends, for the largest array that was tried."""
    ranks = get_world_size()
    size = _FIRST_BYTES
    while True:
        array = np.empty(size // 8)
        seconds = np.array([min(_timed(array) for _ in range(3))])
        all_reduce(seconds, ReduceOp.MAX)  # so that all ranks decide alike
        if seconds[0] > _LONG_ENOUGH or size >= _LAST_BYTES:
            return float(2 * (ranks - 1) / ranks * size / seconds[0])
        size *= 2


def _timed(array: NDArray[np.float64]) -> float:
    """Return the seconds of an all_reduce. Raises RuntimeError if the sum is wrong."""
    ranks = get_world_size()
    array.fill(get_rank() + 1)
    barrier()
    began = time.perf_counter()
    all_reduce(array)
    taken = time.perf_counter() - began
    if not (array == ranks * (ranks + 1) / 2).all():
        raise RuntimeError(f"rank {get_rank()} got a wrong sum: the network or memory corrupts")
    return taken


if __name__ == "__main__":
    main()
