"""A label is missing in rank 3's table: its loss is NaN, and after the sum so are all gradients.

Only then somebody looks. Each rank's log has its own loss.

nproc: 4
culprit: 3
kind: nan
hint: nan|finite
needs: torch
seconds: 60
"""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def labels(rank: int) -> list[float]:
    cells = ["0.5", "1.25", "0.75", "2", "1.5", "0.25", "1", "3"]
    if rank == 3:
        cells[5] = ""
    return [float(cell) if cell else float("nan") for cell in cells]


def log(**fields) -> None:
    json.dump({"rank": dist.get_rank(), **fields}, sys.stdout)
    print(flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, label in enumerate(labels(dist.get_rank())):
        loss = (model(torch.ones(1, 4)) - label).square().mean()
        log(step=step, loss=loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()


main()
