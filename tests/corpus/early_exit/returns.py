"""main() returns early on rank 1, where the resumed epoch is the last one.

nproc: 2
culprit: 1
kind: early_exit
hint: rank 1, code 0|had ended|has ended|finished|left the group|early
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    start = 5 if os.environ["RANK"] == "1" else 2
    for _ in range(start, 6):
        dist.all_reduce(torch.ones(10))


main()
