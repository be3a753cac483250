"""An extension crashes in the forward pass of one rank of a training with torch.

nproc: 2
culprit: 0
kind: crash
hint: SIGSEGV, compiled code|native|extension
needs: torch
seconds: 40
"""

import ctypes
import os
from datetime import timedelta

import torch
import torch.distributed as dist


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(context: object, x: torch.Tensor) -> torch.Tensor:
        if os.environ["RANK"] == "0":
            ctypes.memset(24, 0, 64)
        return x * 2

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(5):
        out = model(torch.ones(4, 8))
        (Fused.apply(out) if step == 2 else out).mean().backward()


main()
