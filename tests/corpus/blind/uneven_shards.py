"""Rank 2's shard is one batch shorter, so it leaves the loop first and ends well.

The others still average gradients with it and see its connections close.

nproc: 3
culprit: 2
kind: early_exit
hint: exit code 0|exited with 0|ended well|finished|success|early|left
needs: torch
seconds: 45
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

SAMPLES, BATCH = 640, 32


def shard(rank, world_size):
    """Contiguous shards without padding: the last one has what is left over."""
    data = TensorDataset(torch.randn(SAMPLES, 16))
    each = -(-SAMPLES // world_size)
    return Subset(data, range(rank * each, min((rank + 1) * each, SAMPLES - BATCH)))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (inputs,) in DataLoader(shard(dist.get_rank(), dist.get_world_size()), BATCH):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    print("training is complete", flush=True)


main()
