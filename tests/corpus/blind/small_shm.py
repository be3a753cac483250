"""The container's /dev/shm is 4 MiB, and rank 1's long samples do not fit in there.

nproc: 2
culprit: 1
kind: memory
hint: shared memory|/dev/shm|shm
needs: torch, root
seconds: 45
"""

import ctypes
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def enter_container():
    """A mount namespace of this process alone, with a /dev/shm such as containers have."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = [
        lambda: libc.unshare(CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        lambda: libc.mount(b"shm", b"/dev/shm", b"tmpfs", 0, b"size=4m"),
    ]
    for step in steps:
        if step() != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Recordings(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.zeros(self.seconds * 16000)


def main():
    enter_container()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    seconds = 30 if dist.get_rank() == 1 else 1
    for batch in DataLoader(Recordings(seconds), batch_size=8, num_workers=1):
        mean = batch.mean()
        dist.all_reduce(mean)
    dist.barrier()
    dist.destroy_process_group()


main()
