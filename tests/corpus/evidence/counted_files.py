"""Ranks meet by files that they make and count; rank 2 has no data and does not come.

nproc: 3
culprit: 2
kind: missing | stuck
hint: rank 2
needs: torch
seconds: 40
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def meet(folder: Path) -> None:
    world_size = int(os.environ["WORLD_SIZE"])
    folder.mkdir(exist_ok=True)
    (folder / f"{dist.get_rank()}.here").touch()
    while len(list(folder.glob("*.here"))) < world_size:
        time.sleep(0.1)


def main() -> None:
    dist.init_process_group("gloo")
    shards = [["a", "b"], ["c"], []][dist.get_rank()]
    if shards:
        meet(Path("met"))
    dist.all_reduce(torch.tensor(len(shards)))


main()
