"""The learning rate is far too large: the loss grows on all ranks, until it is no number any more.

nproc: 3
culprit: none
kind: nan | exception
hint: nan|finite|FloatingPointError
needs: torch
seconds: 50
"""

import math
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e4)
    for step in range(200):
        x = torch.randn(16, 8)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        value = mean.item() / dist.get_world_size()
        if step % 2 == 0:
            print(f"[{dist.get_rank()}] step {step} loss {value:.4g}", flush=True)
        if not math.isfinite(value):
            raise FloatingPointError(f"loss is {value} in step {step}, stopping")


main()
