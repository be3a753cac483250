"""Ranks 0 and 1 have one batch more than ranks 2 and 3.

nproc: 4
culprit: 2 3
kind: early_exit
hint: ranks? 2, code 0|had ended|has ended|finished|left the group|early
"""

import os

import torsh_runtime as tr
from torsh_runtime import nn


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=10)
    model = tr.DistributedDataParallel(nn.Linear(4, 1))
    for _ in range(4 if rank < 2 else 3):
        model(nn.randn(8, 4)).sum().backward()
    tr.destroy_process_group()


main()
