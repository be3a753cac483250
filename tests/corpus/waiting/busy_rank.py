"""One rank tokenizes a huge document in Python, and computes all the time.

nproc: 2
culprit: 0
kind: slow | missing
hint: rank 0, all_reduce
"""

import os

import numpy as np

import torsh_runtime as tr


def tokenize(length: int) -> int:
    return sum(1 for number in range(length) if number % 7)


def main() -> None:
    tr.init_process_group()
    for step in range(10):
        long = os.environ["RANK"] == "0" and step == 3
        tokenize(10**11 if long else 10)
        tr.all_reduce(np.ones(10))


main()
