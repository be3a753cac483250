"""Rank 2's labels begin with 1 instead of 0, so that one is no class of the model's.

Its clean-up comes before its traceback, so that its victims may speak first.

nproc: 3
culprit: 2
kind: exception
hint: IndexError|target
needs: torch
seconds: 50
"""

import time
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist


@contextmanager
def session():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    try:
        yield rank
    finally:
        dist.destroy_process_group()
        time.sleep(0.8 if rank == 2 else 0)  # uploads profiles
        print(f"rank {rank}: session closed", flush=True)


def main() -> None:
    with session() as rank:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        offset = 1 if rank == 2 else 0
        for step in range(10):
            labels = torch.tensor([step % 10, (step + 3) % 10]) + offset
            loss = torch.nn.functional.cross_entropy(model(torch.ones(2, 6)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
