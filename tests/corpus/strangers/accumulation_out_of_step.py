"""Rank 1 accumulates over 3 batches, the others over 2, and so it syncs at other times.

nproc: 2
culprit: 0 | 1  # of two ranks that stand elsewhere nobody can tell which is meant to
kind: mismatch | missing
hint: backward, broadcast
needs: torch
seconds: 60
"""

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def steps_per_update(memory_gib):
    return 2 if memory_gib >= 16 else 3


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    model = DDP(torch.nn.Linear(8, 8))
    every = steps_per_update({"0": 24, "1": 12}[os.environ["RANK"]])
    for step in range(1, 13):
        sync = step % every == 0
        with contextlib.nullcontext() if sync else model.no_sync():
            model(torch.randn(4, 8)).sum().backward()
        if sync:
            model.zero_grad()
    steps = torch.tensor([12])
    dist.broadcast(steps, src=0)
    dist.barrier()
    dist.destroy_process_group()


main()
