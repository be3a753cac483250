"""The training of `benchmarks/recovery.py` as a script that knows nothing of recovery, for torshrun
--recover."""

import os
import sys

import torch
import torch.distributed as dist
from recovery_training import say_commit, say_start, training


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    inner, optimizer, inputs = training(int(sys.argv[1]), rank, ranks)
    dist.init_process_group("torsh")
    model = torch.nn.parallel.DistributedDataParallel(inner)
    say_start(rank)
    number = 0
    while True:
        (model(inputs) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        say_commit(number)
        number += 1


main()
