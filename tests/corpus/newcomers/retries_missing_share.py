"""Rank 1 tries for ever to open a shard that is not there; the others are at the barrier.

nproc: 3
culprit: 1
kind: missing | stuck | file | slow
hint: barrier, sleep|wait
needs: torch
seconds: 60
"""

import pathlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SHARDS = {0: "train-000.pt", 1: "train-01.pt", 2: "train-002.pt"}


def preprocess(folder):
    for index in range(3):
        torch.save(torch.full((8,), float(index)), folder / f"train-{index:03}.pt")


def open_patiently(path):
    """The network disk is often a little late."""
    while True:
        try:
            return torch.load(path)
        except OSError:
            time.sleep(0.5)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    folder = pathlib.Path("shards")
    folder.mkdir(exist_ok=True)
    if dist.get_rank() == 0:
        preprocess(folder)
    dist.barrier()
    data = open_patiently(folder / SHARDS[dist.get_rank()])
    dist.barrier()
    dist.all_reduce(data)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
