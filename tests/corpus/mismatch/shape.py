"""The last batch of rank 2 is smaller, and so is what it hands over.

nproc: 3
culprit: 2
kind: mismatch
hint: rank 2, all_reduce, shape|elements|bytes|24
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    for step in range(4):
        last = step == 3 and os.environ["RANK"] == "2"
        tr.all_reduce(np.ones(24 if last else 32, np.float32))


main()
