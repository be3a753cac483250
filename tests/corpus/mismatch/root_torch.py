"""Rank 2 waits for the model of the wrong peer, under Gloo.

nproc: 3
culprit: 2
kind: mismatch
hint: rank 2, broadcast
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    dist.barrier()
    weights = torch.zeros(1 << 20)
    dist.broadcast(weights, 1 if os.environ["RANK"] == "2" else 0)
    dist.barrier()


main()
