"""Rank 2 forgets the dtype of its gradient, so it is of float64.

nproc: 3
culprit: 2
kind: mismatch
hint: float64, float32
seconds: 30
"""

import numpy as np

import torsh_runtime as tr


def gradient(weights, rank):
    if rank == 2:  # the fallback without a compiled kernel
        return np.array([2 * w for w in weights.tolist()])
    return 2 * weights


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    weights = np.linspace(-1, 1, 32, dtype=np.float32)
    tr.broadcast(weights, src=0)
    for _ in range(5):
        grad = gradient(weights, rank)
        tr.all_reduce(grad)
        weights -= (0.01 * grad).astype(np.float32)
    tr.destroy_process_group()


main()
