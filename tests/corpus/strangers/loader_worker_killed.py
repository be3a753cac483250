"""A DataLoader worker of rank 1 is killed, as the kernel does when memory is short.

nproc: 2
culprit: 1
kind: signal | memory
hint: DataLoader, SIGKILL|Killed|signal
needs: torch
seconds: 60
"""

import os
import signal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 200

    def __getitem__(self, index):
        if self.rank == 1 and index == 90:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((3, 8, 8), float(index))


def main():
    dist.init_process_group("gloo")
    for batch in DataLoader(Images(dist.get_rank()), batch_size=10, num_workers=2):
        mean = batch.mean()
        dist.all_reduce(mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
