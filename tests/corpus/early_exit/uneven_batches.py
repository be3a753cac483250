"""Rank 2 has a batch less than the others: the data does not divide by three.

nproc: 3
culprit: 2
kind: early_exit
hint: rank 2, code 0|had ended|has ended|finished|left the group|early
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=6))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    samples = torch.ones(11, 4)[rank::3]
    for sample in samples:
        model(sample).sum().backward()
    dist.destroy_process_group()


main()
