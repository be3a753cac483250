"""new_group was called by some of the ranks only, as it must not be, and is never made.

nproc: 4
culprit: 2 3
kind: missing | deadlock
hint: rank 2|ranks 2, group
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
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    dist.barrier()
    if rank in (0, 1):
        pair = dist.new_group([0, 1, 2, 3])
        dist.all_reduce(torch.ones(1), group=pair)
    else:
        time.sleep(60)


main()
