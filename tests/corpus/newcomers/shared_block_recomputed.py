"""A block is used twice and recomputed in the backward pass, which DDP does not allow.

nproc: 2
culprit: none
kind: exception
hint: all |every|each|both|ranks
needs: torch
seconds: 60
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Universal(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x):
        x = self.enter(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=True)
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Universal())
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
