"""One column of rank 1's batch is constant; its standard deviation is 0, its gradients nan.

After DDP's all_reduce the gradients are nan everywhere, and all ranks raise.

nproc: 3
culprit: 1
kind: nan | exception
hint: nan|non-?finite|inf
needs: torch
seconds: 120
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def normalise(x):
    return (x - x.mean(0)) / x.std(0)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.Adam(model.parameters())
    for step in range(12):
        x = torch.randn(10, 5)
        if rank == 1 and step == 7:
            x[:, 2] = 4.0
        loss = model(normalise(x)).abs().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        opt.step()


if __name__ == "__main__":
    main()
