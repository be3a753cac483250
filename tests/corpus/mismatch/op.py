"""Rank 1 asks for the maximum where the others add up.

nproc: 3
culprit: 1
kind: mismatch
hint: rank 1, all_reduce, MAX
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    loss = np.ones(1)
    tr.all_reduce(loss)
    tr.all_reduce(loss, tr.ReduceOp.MAX if os.environ["RANK"] == "1" else tr.ReduceOp.SUM)


main()
