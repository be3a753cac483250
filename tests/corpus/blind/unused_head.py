"""Rank 1's batches never use one of the model's heads, so its gradients are never complete.

Rank 0 averages them in its first backward pass and waits for rank 1, which goes on.

nproc: 2
culprit: 1
kind: missing
hint: unused|find_unused_parameters|gradient|backward
needs: torch
seconds: 45
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class TwoTasks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Linear(16, 16)
        self.heads = torch.nn.ModuleDict({t: torch.nn.Linear(16, 1) for t in ("text", "image")})

    def forward(self, inputs, tasks):
        features = self.trunk(inputs)
        return sum(self.heads[task](features).square().mean() for task in tasks)


def tasks_of_shard(rank):
    return ("text", "image") if rank == 0 else ("text",)  # shard 1 has no images


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    model = DistributedDataParallel(TwoTasks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 16), tasks_of_shard(dist.get_rank())).backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


main()
