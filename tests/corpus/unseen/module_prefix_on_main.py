"""Rank 0 alone loads the weights, whose names have a prefix from DDP; the other waits for them.

nproc: 2
culprit: 0
kind: exception
hint: RuntimeError|state_dict|missing key
needs: torch
seconds: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def build() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    old = DistributedDataParallel(build())
    if dist.get_rank() == 0:
        torch.save(old.state_dict(), "pretrained.pt")
    model = build()
    if dist.get_rank() == 0:
        model.load_state_dict(torch.load("pretrained.pt"))
    model = DistributedDataParallel(model)  # which copies rank 0's weights
    model(torch.ones(1, 4)).sum().backward()


main()
