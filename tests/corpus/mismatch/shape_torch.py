"""Gloo is handed a shorter tensor by one rank of three.

nproc: 3
culprit: 1
kind: mismatch
hint: rank 1, all_?reduce, shape|size|elements|bytes
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    for step in range(4):
        size = 1000 if rank == 1 and step == 2 else 4000
        dist.all_reduce(torch.ones(size))


main()
