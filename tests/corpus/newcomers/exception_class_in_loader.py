"""A loader's worker of rank 1 raises an exception whose class takes two arguments.

nproc: 2
culprit: 1
kind: exception
hint: rank 1
needs: torch
seconds: 60
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class BadRecord(Exception):
    def __init__(self, path, line):
        super().__init__(path, line)
        self.path, self.line = path, line

    def __str__(self):
        return f"{self.path}:{self.line}: a record of a version that is not known"


class Records(Dataset):
    def __init__(self, rank):
        self.path = f"part-{rank}.rec"
        self.versions = [3] * 24
        if rank == 1:
            self.versions[17] = 4

    def __len__(self):
        return len(self.versions)

    def __getitem__(self, index):
        if self.versions[index] != 3:
            raise BadRecord(self.path, index)
        return torch.ones(4)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    data = Records(int(os.environ["RANK"]))
    for batch in DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True):
        total = batch.sum()
        dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
