"""A mask of attention for a sequence that is far too long.

culprit: 0
kind: memory
hint: memory, size|smaller|ulimit|bytes
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    for batch in range(4):
        length = 1 << 22 if os.environ["RANK"] == "0" and batch == 2 else 64
        mask = torch.ones(length, length)
        dist.all_reduce(mask[:4, :4].sum())


main()
