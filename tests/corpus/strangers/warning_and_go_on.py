"""Rank 2 turns an error into a warning and goes on without the collective that came next.

nproc: 3
culprit: 2
kind: missing | mismatch | exception
hint: all_reduce|broadcast|barrier
needs: torch
seconds: 60
"""

import warnings
from datetime import timedelta

import torch
import torch.distributed as dist


def validate(batch):
    if batch.min() < 0:
        raise ValueError("negative pixel")


def average_metrics(batch, metrics):
    try:
        validate(batch)
        metrics += batch.mean()
        dist.all_reduce(metrics)
    except ValueError as error:
        warnings.warn(f"metrics are left out: {error}", stacklevel=2)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    metrics = torch.zeros(1)
    for step in range(6):
        batch = torch.rand(16)
        if dist.get_rank() == 2 and step == 3:
            batch[0] = -1
        average_metrics(batch, metrics)
    best = torch.zeros(5)
    dist.broadcast(best, src=0)
    dist.destroy_process_group()


main()
