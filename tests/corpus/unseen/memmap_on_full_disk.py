"""Rank 2 makes its cache as a memory map on a disk that has no room for it: a bus error.

The file is sparse at first, so that only touching its pages fails.

nproc: 3
culprit: 2
kind: crash | disk
hint: SIGBUS|bus error, disk|space|full|map
needs: torch disk
seconds: 50
"""

import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist


def build_cache(rank: int) -> np.ndarray:
    path = os.path.join(os.environ["CORPUS_DISK"], f"features_{rank}.npy")
    rows = 48_000 if rank == 2 else 400
    cache = np.lib.format.open_memmap(path, "w+", np.float32, (rows, 64))
    for start in range(0, rows, 400):
        cache[start : start + 400] = np.random.default_rng(start).normal(size=(400, 64))
    return cache


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    dist.barrier()
    cache = build_cache(dist.get_rank())
    mean = torch.from_numpy(cache.mean(0))
    dist.all_reduce(mean)


main()
