"""Rank 0 saves a checkpoint in between, and makes its calls in another order.

nproc: 3
culprit: 0
kind: mismatch
hint: rank 0, broadcast, all_reduce, order
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    step, loss = np.zeros(1), np.ones(1)
    if os.environ["RANK"] == "0":
        tr.broadcast(step, 0)
        tr.all_reduce(loss)
    else:
        tr.all_reduce(loss)
        tr.broadcast(step, 0)


main()
