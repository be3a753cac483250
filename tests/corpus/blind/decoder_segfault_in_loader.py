"""A data loader's worker of rank 1 crashes in native code over a broken image.

nproc: 2
culprit: 1
kind: crash
hint: segmentation|SIGSEGV, loader|worker process|child
needs: torch
seconds: 45
"""

import ctypes
import resource
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BROKEN_IMAGE = 75


class Images(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        if index == BROKEN_IMAGE:
            time.sleep(1)  # so large that all batches before are taken by then
            ctypes.string_at(0)  # the decoder follows an offset of the file's header
        return torch.full((3, 8, 8), float(index))


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    images = Images()
    sampler = DistributedSampler(images, shuffle=False)
    for batch in DataLoader(images, 8, sampler=sampler, num_workers=1):
        mean = batch.mean()
        dist.all_reduce(mean)
    dist.barrier()
    dist.destroy_process_group()


main()
