"""Rank 2 computes its weights from Python numbers, in double precision; the others load floats.

nproc: 4
culprit: 2
kind: mismatch
hint: float64|dtype|bytes
seconds: 60
"""

import os

import numpy as np

import torsh_runtime as tr


def class_weights(rank):
    cache = f"weights-{rank}.npy"
    if rank != 2:
        np.save(cache, np.ones(10, np.float32))
    if os.path.exists(cache):
        return np.load(cache)
    counts = {c: 10 + c for c in range(10)}
    total = sum(counts.values())
    return np.array([total / counts[c] for c in sorted(counts)])


def main():
    tr.init_process_group(timeout=30)
    weights = class_weights(tr.get_rank())
    tr.all_reduce(weights)
    weights /= tr.get_world_size()
    print(weights[:3])


if __name__ == "__main__":
    main()
