"""Rank 1's profile has PYTHONWARNINGS=error, and the scheduler warns about its order.

nproc: 3
culprit: 1
kind: exception
hint: rank 1
needs: torch
seconds: 60
"""

import os
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def profile_of_user():
    if os.environ["RANK"] == "1":
        warnings.simplefilter("error")  # what PYTHONWARNINGS=error does


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    profile_of_user()
    model = DDP(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    for _ in range(4):
        scheduler.step()
        optimizer.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
