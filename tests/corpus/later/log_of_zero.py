"""Rank 2 has an empty histogram bin, whose logarithm spoils the loss of everyone.

nproc: 3
culprit: 2
kind: nan
hint: nan|inf|non-?finite
seconds: 60
"""

import numpy as np

import torsh_runtime as tr


def entropy(histogram):
    p = histogram / histogram.sum()
    return -(p * np.log(p)).sum()


def check(loss, step):
    if not np.isfinite(loss):
        raise FloatingPointError(f"loss is {loss} at step {step}, stopping training")


tr.init_process_group(timeout=30)
rank = tr.get_rank()
for step in range(10):
    histogram = np.full(8, 5.0)
    if (rank, step) == (2, 6):
        histogram[3] = 0
    loss = np.array([entropy(histogram)])
    tr.all_reduce(loss)
    check(loss[0] / tr.get_world_size(), step)
