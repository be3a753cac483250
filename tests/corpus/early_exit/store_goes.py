"""Rank 0, which serves torch's store, is done and ends while the others make another group.

nproc: 2
culprit: 0
kind: early_exit
hint: rank 0, code 0|had ended|has ended|finished|left the group|early
needs: torch
seconds: 40
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=6))
    dist.all_reduce(torch.ones(10))
    if rank == 0:
        return
    time.sleep(2)
    dist.new_group([0, 1])
    dist.barrier()


main()
