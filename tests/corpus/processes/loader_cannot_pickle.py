"""The data set of every rank holds a lambda, which a spawned loader cannot have.

nproc: 2
culprit: 0 1
kind: exception
hint: exit code 1|exitcode +: 1
needs: torch
seconds: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Scaled(Dataset):
    def __init__(self) -> None:
        self.scale = lambda x: x * 2

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.scale(torch.ones(2))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    for batch in DataLoader(Scaled(), num_workers=1, multiprocessing_context="spawn"):
        dist.all_reduce(batch.sum())


if __name__ == "__main__":
    main()
