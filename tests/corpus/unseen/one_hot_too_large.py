"""Rank 1's table has ids that are hashes: a one-hot matrix of them fits into no memory.

nproc: 3
culprit: 1
kind: memory | exception
hint: MemoryError|memory|allocate
seconds: 30
"""

import os

import numpy as np

import torsh_runtime as tr


def one_hot(ids: np.ndarray) -> np.ndarray:
    matrix = np.zeros((len(ids), int(ids.max()) + 1), np.float32)
    matrix[np.arange(len(ids)), ids] = 1
    return matrix


def main() -> None:
    tr.init_process_group(timeout=20)
    rank = int(os.environ["RANK"])
    ids = np.arange(64) % 50
    if rank == 1:
        ids = ids * 2654435761 + 40_503 * 2**26
    print(f"rank {rank}: {len(ids)} ids", flush=True)
    counts = one_hot(ids).sum(0)[:50]
    tr.all_reduce(counts)
    tr.destroy_process_group()


main()
