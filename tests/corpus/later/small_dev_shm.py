"""A container with a small /dev/shm, and DataLoader workers that hand over large batches there.

Rank 1 alone was given workers.

culprit: 1
kind: memory | disk | crash | signal | exception | limit
hint: /dev/shm|shared memory, shm
needs: torch, shm
seconds: 120
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.ones(128, 128, 64)  # 4 MiB


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    workers = {0: 0, 1: 2}[int(os.environ["LOCAL_RANK"])]  # tuned on the other machine
    loader = DataLoader(Volumes(), batch_size=4, num_workers=workers, prefetch_factor=None)
    if workers:
        loader = DataLoader(Volumes(), batch_size=4, num_workers=workers, prefetch_factor=4)
    for batch in loader:
        mean = batch.mean()
        dist.all_reduce(mean)


if __name__ == "__main__":
    main()
