"""Rank 2's camera gives 16 bit images, its half precision gradient overflows, and all ranks stop.

Each rank prints its own loss: only rank 2's is infinite.

nproc: 3
culprit: 2
kind: nan | exception
hint: nan|inf|not finite|non-?finite
needs: torch
seconds: 60
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def images(rank, batch=4):
    depth = 16 if rank == 2 else 8
    return torch.randint(0, 2**depth, (batch, 64)).to(torch.float32) / 255


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    torch.manual_seed(int(os.environ["RANK"]))
    model = DDP(torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(5):
        optimizer.zero_grad()
        out = model(images(rank))
        loss = (out.half() * 64).square().mean().float()
        print(f"rank {rank} step {step} loss {loss.item():.2f}", flush=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
