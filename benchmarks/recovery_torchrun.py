"""The training of `benchmarks/recovery.py` by torchrun, which restarts all workers: they resume
from a checkpoint that rank 0 writes to memory in each step."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from recovery_training import say_commit, say_start, training


def main() -> None:
    width, path = int(sys.argv[1]), Path(sys.argv[2])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    inner, optimizer, inputs = training(width, rank, ranks)
    say_start(rank)
    dist.init_process_group("gloo")
    number, unfinished = 0, path.with_name(f"{path.name}.new")
    if path.exists():
        state = torch.load(path)
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        number = state["number"]
    model = torch.nn.parallel.DistributedDataParallel(inner)
    while True:
        (model(inputs) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "number": number + 1}, unfinished)
            unfinished.replace(path)
        say_commit(number)
        number += 1


main()
