"""Rank 1 drops a layer in its forward pass, so it never gathers that layer's shards.

nproc: 2
culprit: 0 | 1  # of two ranks that stand elsewhere nobody can tell which is meant to
kind: mismatch | missing
hint: all_gather|allgather|reduce_scatter|size|mismatch
needs: torch
seconds: 90
"""

import random
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


class Stochastic(torch.nn.Module):
    """Stochastic depth."""

    def __init__(self, width, depth, drop):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))
        self.drop, self.random = drop, random.Random(1)

    def forward(self, x):
        for layer in self.layers:
            if self.random.random() >= self.drop:
                x = x + layer(x).relu()
        return x


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    torch.manual_seed(0)
    drop = 0.5 if dist.get_rank() == 1 else 0.0  # the config of one rank was edited
    model = Stochastic(16, 4, drop)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(2, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
