"""Rank 2 resumes from its own disk, where there is a newer checkpoint, and is done one step early.

nproc: 3
culprit: 2
kind: early_exit | missing
hint: rank 2, ended|exit code 0|left|early|finished
needs: torch
seconds: 50
"""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def latest(folder: Path) -> int:
    return max((int(path.stem.split("-")[1]) for path in folder.glob("step-*.pt")), default=0)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    folder = Path(f"local{rank}")
    folder.mkdir()
    for step in (10, 20, 21) if rank == 2 else (10, 20):  # the last run was cut off in between
        torch.save({"step": step}, folder / f"step-{step}.pt")
    start = torch.load(folder / f"step-{latest(folder)}.pt")["step"]
    print(f"[{rank}] resuming", flush=True)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(start, 30):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    print(f"[{rank}] training is complete", flush=True)


main()
