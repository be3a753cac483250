"""Rank 2 skips a batch with a loss that is too large, and with it a collective of the step.

It is one behind from then on: at the end the others wait for its last call.

nproc: 3
culprit: 2
kind: missing
hint: all_?reduce, rank 2
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
    for step in range(10):
        loss = 100.0 if rank == 2 and step == 4 else 1.0
        if loss > 10:
            continue
        dist.all_reduce(torch.tensor([loss]))
    while rank == 2:  # it writes its report meanwhile
        time.sleep(1)
    print("done")


main()
