"""A gradient of rank 1 is not a number, and the training looks for that.

nproc: 2
culprit: 1
kind: nan
hint: nan|finite, rank 1, weight|gradient
"""

import os

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn


def main() -> None:
    tr.init_process_group(timeout=20)
    model = tr.DistributedDataParallel(nn.Linear(4, 1), check_nan=True)
    for step in range(4):
        batch = np.ones((8, 4), np.float32)
        if step == 2 and os.environ["RANK"] == "1":
            batch[3, 2] = np.nan
        model(nn.from_numpy(batch)).sum().backward()


main()
