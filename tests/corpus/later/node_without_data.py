"""On the second node the data is not mounted.

nproc: 2
nnodes: 2
culprit: 2 3
kind: exception | file
hint: FileNotFoundError|no such file|exit code 1|exitcode +: 1
needs: torch
seconds: 120
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def mount(node: int) -> Path:
    root = Path(f"mnt-{node}/datasets")
    root.mkdir(parents=True, exist_ok=True)
    if node == 0:
        torch.save(torch.arange(100.0), root / f"train-{os.environ['LOCAL_RANK']}.pt")
    return root


def main() -> None:
    root = mount(int(os.environ["GROUP_RANK"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    dist.barrier()
    data = torch.load(root / f"train-{os.environ['LOCAL_RANK']}.pt")
    mean = data[dist.get_rank() :: dist.get_world_size()].mean()
    dist.all_reduce(mean)


main()
