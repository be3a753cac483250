"""Rank 1 is through first and cleans the cache of all, when rank 0 has not read its file yet.

nproc: 2
culprit: 0 | 1
kind: file
hint: rank 0, rank 1
needs: torch
seconds: 40
"""

import os
import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs("cache", exist_ok=True)
    for part in range(2):
        torch.save(torch.ones(3), f"cache/{rank}-{part}.pt")
    dist.barrier()
    if rank == 0:
        time.sleep(1)
    total = sum(torch.load(f"cache/{rank}-{part}.pt") for part in range(2))
    if rank == 1:
        for name in sorted(os.listdir("cache")):
            os.remove(f"cache/{name}")
            print(f"[cache] removed cache/{name}", flush=True)
    dist.all_reduce(total)


main()
