"""Rank 0 is in a long evaluation that the others do not take part in.

nproc: 3
culprit: 0
kind: missing | slow
hint: all_?gather, rank 0
needs: torch
seconds: 40
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def evaluate() -> float:
    end = time.monotonic() + 60
    total = 0.0
    while time.monotonic() < end:
        total += float(torch.ones(64, 64).sum())
        time.sleep(0.01)
    return total


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    for epoch in range(2):
        if epoch == 1 and rank == 0:
            evaluate()
        parts = [torch.zeros(4) for _ in range(3)]
        dist.all_gather(parts, torch.ones(4))


main()
