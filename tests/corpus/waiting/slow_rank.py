"""One rank's disk is so slow that it takes a minute for a batch.

nproc: 3
culprit: 1
kind: slow | missing
hint: rank 1, all_reduce, slow
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def load(step: int) -> np.ndarray:
    time.sleep(60 if os.environ["RANK"] == "1" and step == 3 else 0.01)
    return np.ones(100)


def main() -> None:
    tr.init_process_group(timeout=4)
    for step in range(10):
        tr.all_reduce(load(step))


main()
