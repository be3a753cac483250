"""Measures how close a large all_reduce comes to the limit of the memory. Run it under torshrun.

    torshrun --nproc-per-node 2 benchmarks/memory.py --mib 256

An all_reduce in place must read and write every rank's buffer at least once. This measures that
alone (an in-place addition on all ranks at the same time), one memcpy by one rank alone, and the
all_reduce, in interleaved rounds; medians of the slowest rank, in ms. "Shared" is memory that the
ranks of the node have mapped, as for large numpy arrays; "private" is their memory with
TORSH_SHARE_ARRAYS=0. The last rows are the cost of an array that is made, filled and freed, and of
a fork of a process that has one: arrays leave shared memory at the first fork after they were made.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import torsh_runtime as tr


def worst_ms(action: Callable[[], object]) -> float:
    """Return the slowest rank's time of one call that all ranks start together."""
    tr.barrier()
    begun = time.perf_counter()
    action()
    mine = np.array([time.perf_counter() - begun])
    tr.all_reduce(mine, tr.ReduceOp.MAX)
    return float(mine[0]) * 1e3


def private(num_floats: int) -> NDArray[np.float32]:
    """Return an array of ones in numpy's usual memory: in huge pages, if there are any."""
    memory = mmap.mmap(-1, 4 * num_floats, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.float32)
    array.fill(1)
    return array


def fork() -> None:
    """Fork a child that ends at once."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    tr.init_process_group()
    num_floats = options.mib << 18
    times = steps(num_floats, options.rounds) | forks(num_floats)
    if tr.get_rank() == 0:
        reference = statistics.median(times["one memcpy, one rank alone"])
        for name, values in times.items():
            median = statistics.median(values)
            print(f"{name:32} {median:8.2f} ms  {median / reference:5.2f} x memcpy")
    tr.destroy_process_group()


def steps(num_floats: int, rounds: int) -> dict[str, list[float]]:
    """Return the times in ms of everything but forks, in interleaved rounds after a warmup."""
    data = np.zeros(num_floats, np.float32)
    own, target = private(num_floats), private(num_floats)
    alone = tr.get_rank() == 0
    actions: dict[str, Callable[[], object]] = {
        "one memcpy, one rank alone": lambda: np.copyto(target, own) if alone else None,
        "read and write once, private": lambda: np.add(own, 0, out=own),
        "read and write once, shared": lambda: np.add(data, 0, out=data),
        "all_reduce, private": lambda: tr.all_reduce(own),
        "all_reduce, shared": lambda: tr.all_reduce(data),
        "a new array, private": lambda: private(num_floats),
        "a new array, shared": lambda: np.ones(num_floats, np.float32),
    }
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            times[name].append(worst_ms(action))
    return {name: values[1:] for name, values in times.items()}


def forks(num_floats: int) -> dict[str, list[float]]:
    """Return the times in ms of forks of a process that has an array."""
    held = private(num_floats)
    times = {"a fork, private": [worst_ms(fork)]}
    del held
    held = np.ones(num_floats, np.float32)
    times["the first fork, shared"] = [worst_ms(fork)]
    times["a later fork, shared"] = [worst_ms(fork)]
    assert held[0] == 1
    return times


if __name__ == "__main__":
    main()
