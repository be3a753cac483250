"""A library ends the process of rank 0 without a word: os._exit(0).

nproc: 2
culprit: 0
kind: early_exit
hint: rank 0, code 0|had ended|has ended|finished|left the group|early
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=10)
    for step in range(10):
        if step == 4 and os.environ["RANK"] == "0":
            os._exit(0)
        tr.all_reduce(np.ones(10))


main()
