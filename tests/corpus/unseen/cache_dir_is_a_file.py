"""The cache's directory is below what is a file on this machine, for all ranks alike.

nproc: 2
culprit: none
kind: file | exception
hint: NotADirectoryError|not a directory|cache
needs: torch
seconds: 40
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

CACHE = Path(os.environ.get("FEATURE_CACHE", "scratch/features"))


def cached(name: str, make) -> torch.Tensor:
    path = CACHE / f"rank{dist.get_rank()}" / f"{name}.pt"
    if path.exists():
        return torch.load(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    value = make()
    torch.save(value, path)
    return value


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    if dist.get_rank() == 0:
        # somebody's `cp archive scratch` on a machine that had no such directory
        Path("scratch").write_bytes(b"PK\x03\x04")
    dist.barrier()
    mean = cached("mean", lambda: torch.zeros(16))
    dist.all_reduce(mean)


main()
