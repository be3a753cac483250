"""Makes and uses very many groups of all ranks at once, with 1,024 descriptors per process.

    torshrun --nproc-per-node 2 benchmarks/many_groups.py --groups 1000

Prints the cost of a group: milliseconds to make and to use first, descriptors, and memory. It fails
    if one of them cannot be made, or gives a wrong sum.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

import torsh_runtime as tr

DESCRIPTORS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument(
        "--elements", type=int, default=1000, help="float32 ones of each all_reduce"
    )
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    default = tr.init_process_group("native")
    before, memory = descriptors(), private_bytes()
    began = time.perf_counter()
    groups = [tr.new_group() for _ in range(options.groups)]
    made = time.perf_counter() - began
    for number, group in enumerate(groups):
        array = np.full(options.elements, number, np.float32)
        tr.all_reduce(array, group=group)
        expected = number * default.world_size
        if not (array == expected).all():
            raise RuntimeError(f"group {number}: {array} should be {expected}")
    used = time.perf_counter() - began - made
    if default.rank == 0:
        print(
            f"{options.groups} groups of {default.world_size} ranks: each "
            f"{made / options.groups * 1e3:.2f} ms to make, "
            f"{used / options.groups * 1e3:.2f} ms to use first, "
            f"{(private_bytes() - memory) / options.groups / 1024:.0f} KiB of rank 0's own memory; "
            f"{descriptors() - before} descriptors for all, of {DESCRIPTORS}"
        )
    tr.barrier()
    tr.destroy_process_group()


def descriptors() -> int:
    """Return the number of descriptors that this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])


def private_bytes() -> int:
    """Return the bytes of memory that only this process has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


if __name__ == "__main__":
    main()
