"""Rank 2 has taken the branch for frozen layers, and skips the reduce_scatter.

nproc: 3
culprit: 2
kind: missing
hint: reduce_scatter, rank 2
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=4)
    for step in range(5):
        frozen = rank == 2 and step == 3
        if frozen:
            time.sleep(60)
        mine = np.empty(4, np.float32)
        tr.reduce_scatter_tensor(mine, np.ones(12, np.float32))


main()
