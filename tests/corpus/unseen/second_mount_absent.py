"""Every second rank reads from a second disk, which is not mounted.

nproc: 4
culprit: 1 3
kind: file | exception
hint: FileNotFoundError|no such file
needs: torch
seconds: 50
"""

import logging
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from rich.logging import RichHandler

logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler()])
DISKS = ["nvme0", "nvme1"]


def shards(rank: int) -> list[Path]:
    disk = Path("mnt") / DISKS[rank % len(DISKS)] / "laion"
    if rank % len(DISKS) == 0:
        disk.mkdir(parents=True, exist_ok=True)
        (disk / f"{rank:05d}.bin").write_bytes(bytes(1024))
    return [disk / f"{rank:05d}.bin"]


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    dist.barrier()
    for path in shards(rank):
        logging.info("rank %d reads %s", rank, path)
        data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).float()
        total = data.sum()
        dist.all_reduce(total)


main()
