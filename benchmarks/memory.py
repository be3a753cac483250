"""How near a large all_reduce comes to what the memory allows: run it under torshrun.

    torshrun --nproc-per-node 2 benchmarks/memory.py --mib 256

An all_reduce in place has to read and write every rank's buffer once at least. This measures that
alone (an in-place addition on all ranks at the same time), one memcpy by one rank alone, and the
all_reduce, in interleaved rounds; medians of the worst rank, in ms.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import torsh_runtime as tr


def worst_ms(action: Callable[[], object]) -> float:
    """The slowest rank's time of one call that all ranks begin together."""
    tr.barrier()
    begun = time.perf_counter()
    action()
    mine = np.array([time.perf_counter() - begun])
    tr.all_reduce(mine, tr.ReduceOp.MAX)
    return float(mine[0]) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    tr.init_process_group()
    data = np.zeros(options.mib << 18, np.float32)
    copy = data.copy()
    alone = tr.get_rank() == 0
    actions: dict[str, Callable[[], object]] = {
        "one memcpy, one rank alone": lambda: np.copyto(copy, data) if alone else None,
        "read and write once, all ranks": lambda: np.add(data, 0, out=data),
        "all_reduce": lambda: tr.all_reduce(data),
    }
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(options.rounds + 1):
        for name, action in actions.items():
            times[name].append(worst_ms(action))
    if alone:
        reference = statistics.median(times["one memcpy, one rank alone"][1:])
        for name, values in times.items():
            median = statistics.median(values[1:])
            print(f"{name:32} {median:8.2f} ms  {median / reference:5.2f} x memcpy")
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
