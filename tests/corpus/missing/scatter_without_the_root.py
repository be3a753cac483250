"""The root shuffles the data for so long that the others give up waiting for the scatter.

nproc: 3
culprit: 0
kind: missing | slow
hint: scatter, rank 0
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
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    dist.barrier()
    mine = torch.zeros(8)
    if rank == 0:
        time.sleep(40)
        dist.scatter(mine, [torch.ones(8) for _ in range(3)], 0)
    else:
        dist.scatter(mine, None, 0)


main()
