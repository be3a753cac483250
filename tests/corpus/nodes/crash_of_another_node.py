"""A worker of the second node crashes under torch, and the others complain about a connection.

nproc: 1
nnodes: 2
culprit: 1
kind: crash
hint: rank 1|rank +: 1, SIGSEGV
needs: torch
seconds: 40
"""

import ctypes
import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    for step in range(10):
        if step == 5 and os.environ["RANK"] == "1":
            ctypes.string_at(32)
        dist.all_reduce(torch.ones(10))


main()
