"""Rank 1 fails over a label, and waits at a barrier in its clean-up before it can say so.

Rank 0 is in the next all_reduce meanwhile: both wait until the deadline of one passes.

nproc: 2
culprit: 1
kind: exception
hint: KeyError|label|finally
needs: torch
seconds: 45
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

LABELS = {"cat": 0, "dog": 1}


def names(rank, step):
    if (rank, step) != (1, 3):
        return ["cat", "dog"]
    time.sleep(2)  # a slow read, so that rank 0's deadline is the first to pass
    return ["cat", "axolotl"]


def train():
    for step in range(6):
        labels = torch.tensor([LABELS[name] for name in names(dist.get_rank(), step)])
        gradients = torch.full((4096,), float(labels.sum()))
        dist.all_reduce(gradients)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    try:
        train()
    finally:
        dist.barrier()  # so that no rank leaves while others still write
        dist.destroy_process_group()


main()
