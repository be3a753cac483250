"""Rank 1 resumes one step later than the others, and its accumulation of gradients is shifted.

It exchanges gradients in other steps than they do, and once less.

nproc: 3
culprit: 1
kind: missing | mismatch | early_exit
hint: all_?reduce|barrier
needs: torch
seconds: 120
"""

import contextlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 4
LAST_STEP = 16


def start_step(rank):
    resumed = {0: 4, 1: 5, 2: 4}  # each rank's own state file; rank 1's was written a step later
    return resumed[rank]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    model = DDP(nn.Linear(4, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    first = start_step(rank)
    for micro, _step in enumerate(range(first, LAST_STEP), start=1):
        sync = micro % ACCUMULATE == 0
        with contextlib.nullcontext() if sync else model.no_sync():
            model(torch.randn(8, 4)).mean().backward()
        if sync:
            opt.step()
            opt.zero_grad()
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "final.pt")


main()
