"""Rank 1 keeps every batch of its data loader, each of which holds a descriptor, up to the limit.

nproc: 2
culprit: 1
kind: limit
hint: open files|descriptor|RLIMIT_NOFILE|ulimit -n|EMFILE
needs: torch
seconds: 45
"""

import resource
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 300


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))  # 1024 on many hosts
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    data = TensorDataset(torch.randn(BATCHES, 1024))
    kept = []
    for (batch,) in DataLoader(data, batch_size=1, num_workers=1):
        norm = batch.norm()
        dist.all_reduce(norm)
        if dist.get_rank() == 1:
            kept.append(batch)  # for a histogram at the end of the epoch
    print(f"{len(kept)} batches kept", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
