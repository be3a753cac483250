"""Rank 1 believes that there is nothing left to do, and calls sys.exit(0).

nproc: 3
culprit: 1
kind: early_exit
hint: rank 1, code 0|had ended|has ended|finished|left the group|early
"""

import os
import sys

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=10)
    for step in range(10):
        if step == 4 and os.environ["RANK"] == "1":
            sys.exit(0)
        tr.all_reduce(np.ones(10))


main()
