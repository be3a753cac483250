"""Checks the results of all_reduces and times them, and prints a report of one line to stdout.

`torshctl doctor --network-check` runs it on each of two nodes, under torshrun. With --gpus each
rank has a GPU, and arrays are cupy's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.bootstrap import destroy_process_group, init_process_group
from torsh_runtime.comm.barriers import barrier
from torsh_runtime.comm.groups import get_rank, get_world_size
from torsh_runtime.comm.reductions import all_reduce

_SMALL_CALLS = 20
_FIRST_BYTES, _LAST_BYTES = 256 << 10, 64 << 20
_LONG_ENOUGH = 0.25
"""Seconds of an all_reduce that is long enough, so that no larger one is tried."""


def main() -> None:
    arrays = _join_with_gpus() if "--gpus" in sys.argv[1:] else _join()
    small = arrays.zeros(1)
    latency = median(_timed(small) for _ in range(_SMALL_CALLS))
    rate = _rate(arrays)
    report = json.dumps({"latency": latency, "rate": rate})
    sys.stdout.write(f"network check: {report}\n")
    destroy_process_group()


def _join() -> Any:
    init_process_group("native")
    return np


def _join_with_gpus() -> Any:
    local_rank = int(os.environ["LOCAL_RANK"])
    cupy = import_module("cupy")
    cupy.cuda.Device(local_rank).use()
    init_process_group("cpu:native,cuda:nccl", device_id=local_rank)
    return cupy


def _rate(arrays: Any) -> float:
    """Return the bytes per second that each rank sends, for the largest array that was tried."""
    ranks = get_world_size()
    size = _FIRST_BYTES
    while True:
        array = arrays.empty(size // 8)
        seconds = np.array([min(_timed(array) for _ in range(3))])
        all_reduce(seconds, ReduceOp.MAX)  # so that all ranks decide alike
        if seconds[0] > _LONG_ENOUGH or size >= _LAST_BYTES:
            return float(2 * (ranks - 1) / ranks * size / seconds[0])
        size *= 2


def _timed(array: Any) -> float:
    """Return the seconds of an all_reduce. Raises RuntimeError if the sum is wrong."""
    ranks = get_world_size()
    array.fill(get_rank() + 1)
    _finish(array)
    barrier()
    began = time.perf_counter()
    all_reduce(array)
    _finish(array)
    taken = time.perf_counter() - began
    if not (array == ranks * (ranks + 1) / 2).all():
        raise RuntimeError(f"rank {get_rank()} got a wrong sum: the network or memory corrupts")
    return taken


def _finish(array: Any) -> None:
    """Wait until a GPU has done what was asked of it for the array."""
    if not isinstance(array, np.ndarray):
        array.device.synchronize()


if __name__ == "__main__":
    main()
