"""Rank 1 built its model with another width: its checkout of the code is older.

nproc: 3
culprit: 1
kind: mismatch | version
hint: rank 1, weight|parameter|shape|model
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    width = 48 if os.environ["RANK"] == "1" else 64
    model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Linear(width, 4))
    model = torch.nn.parallel.DistributedDataParallel(model)
    model(torch.ones(8, 16)).sum().backward()


main()
