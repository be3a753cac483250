"""A hook of the backward pass fails on one rank, within autograd's threads.

culprit: 1
kind: exception
hint: exit code 1|exitcode +: 1
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def clip(gradient: torch.Tensor) -> torch.Tensor:
    norm = float(gradient.norm())
    if os.environ["RANK"] == "1" and norm >= 0:
        raise ValueError(f"norm {norm:.3f} of bias is out of bounds")
    return gradient


@record
def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    layer = torch.nn.Linear(8, 1)
    layer.bias.register_hook(clip)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    for _ in range(3):
        model(torch.ones(4, 8)).mean().backward()


if __name__ == "__main__":
    main()
