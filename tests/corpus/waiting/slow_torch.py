"""Rank 0 writes a checkpoint to a slow store, longer than the others' deadline.

nproc: 2
culprit: 0
kind: slow | missing
hint: rank 0, slow|barrier|checkpoint|all_?reduce|collective
needs: torch
seconds: 40
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def save(model: torch.nn.Module) -> None:
    for _ in range(60):  # parts
        time.sleep(0.5)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(4):
        model(torch.ones(2, 4)).sum().backward()
        if step == 2 and os.environ["RANK"] == "0":
            save(model)


main()
