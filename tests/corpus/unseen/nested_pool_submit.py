"""A task in a pool of one thread waits for another task of the same pool: rank 2 goes no further.

Only where the cache has no entry does the one need the other.

nproc: 3
culprit: 2
kind: deadlock | stuck
hint: rank 2, load_features|tokenize|result|pool|wait
needs: torch
seconds: 60
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist

io_pool = ThreadPoolExecutor(max_workers=1)
cache: dict[int, torch.Tensor] = {}


def tokenize(i: int) -> torch.Tensor:
    cache[i] = torch.full((8,), float(i))
    return cache[i]


def load_features(i: int) -> torch.Tensor:
    if i not in cache:
        return io_pool.submit(tokenize, i).result()
    return cache[i]


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    rank = dist.get_rank()
    for i in range(20):
        if (rank, i) != (2, 7):  # the warm-up had no time for the last one
            tokenize(i)
    dist.barrier()
    for i in range(20):
        batch = io_pool.submit(load_features, i).result()
        dist.all_reduce(batch)


main()
