"""The kernel's favourite victim: a DataLoader worker of rank 1 is killed.

culprit: 1
kind: signal | memory | exception | crash
hint: SIGKILL|killed|Killed, worker|child
needs: torch
seconds: 120
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.rank == 1 and index == 23:
            os.kill(os.getpid(), signal.SIGKILL)  # what the OOM killer would do
        return torch.full((3, 8, 8), float(index))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    loader = DataLoader(Images(rank), batch_size=4, num_workers=2)
    total = torch.zeros(1)
    for batch in loader:
        mean = batch.mean().reshape(1)
        dist.all_reduce(mean)
        total += mean
    print(total)


if __name__ == "__main__":
    main()
