"""The same layers run in two reentrant checkpoints, which DDP cannot follow, on any rank.

nproc: 2
culprit: none
kind: exception | usage
hint: RuntimeError|ready|twice
needs: torch
seconds: 50
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint


class Siamese(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(8, 8)
        self.body = torch.nn.Linear(8, 8)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left = checkpoint(self.body, self.stem(left), use_reentrant=True)
        right = checkpoint(self.body, self.stem(right), use_reentrant=True)
        return (left - right).square().mean()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    model = torch.nn.parallel.DistributedDataParallel(Siamese())
    for _ in range(3):
        model(torch.randn(4, 8), torch.randn(4, 8)).backward()


main()
