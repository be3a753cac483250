"""A worker of rank 1's DataLoader crashes in a decoder.

culprit: 1
kind: crash
hint: DataLoader|child|process of its own|worker process, SIGSEGV|segmentation
needs: torch
seconds: 40
"""

import ctypes
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 40 and os.environ["RANK"] == "1":
            ctypes.string_at(16)
        return torch.ones(3, 8, 8)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    for batch in DataLoader(Images(), batch_size=4, num_workers=2):
        model(batch).mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
