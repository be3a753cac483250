"""A loader's worker of rank 1 hangs over a shard on a network disk; the DataLoader has a timeout.

nproc: 2
culprit: 1
kind: exception | stuck | slow
hint: rank 1
needs: torch
seconds: 60
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


def read_from_share(index):
    """The server of the second half of the data does not answer any more."""
    if os.environ["RANK"] == "1" and index == 9:
        time.sleep(3600)
    return torch.full((4,), float(index))


class Shards(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return read_from_share(index)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    for batch in DataLoader(Shards(), batch_size=2, num_workers=1, timeout=4):
        mean = batch.mean()
        dist.all_reduce(mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
