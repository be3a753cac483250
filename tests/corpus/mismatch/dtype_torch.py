"""Rank 2 is in double precision under Gloo, which counts bytes only.

nproc: 3
culprit: 2
kind: mismatch
hint: rank 2, dtype|type|bytes|double|float64
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    dtype = torch.float64 if os.environ["RANK"] == "2" else torch.float32
    gathered = [torch.zeros(1000, dtype=dtype) for _ in range(3)]
    dist.all_gather(gathered, torch.ones(1000, dtype=dtype))
    print("done", gathered[0].sum())
    dist.barrier()


main()
