"""A process that loads data for rank 0 grows until the kernel kills it, and rank 0 gives up.

culprit: 0
kind: memory
hint: out of memory|oom, child|process
needs: cgroup
"""

import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import torsh_runtime as tr


def load(shard: int) -> int:
    kept = [np.ones(1 << 22) for _ in range(shard)]
    return len(kept)


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=60)
    with ProcessPoolExecutor(1) as pool:
        for shard in (1, 2, 100):
            count = pool.submit(load, shard if rank == 0 else 1).result()
            tr.all_reduce(np.array([count]))


if __name__ == "__main__":
    main()
