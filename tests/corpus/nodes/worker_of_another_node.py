"""A worker of the second node fails, and the first node's workers lose it.

nproc: 2
nnodes: 2
culprit: 3
kind: exception
hint: rank 3
seconds: 30
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=10)
    for step in range(10):
        if step == 5 and os.environ["RANK"] == "3":
            raise KeyError("validation/loss")
        tr.all_reduce(np.ones(10))


main()
