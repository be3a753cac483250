"""Rank 1 unpacks its data for so long that the others give up before the group is made.

nproc: 3
culprit: 1
kind: missing | slow
hint: rank 1, init_process_group|group|join|come|meet
needs: torch
seconds: 40
"""

import os
import time
from datetime import timedelta

import torch.distributed as dist


def main() -> None:
    if os.environ["RANK"] == "1":
        time.sleep(60)
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    dist.barrier()


main()
