"""Rank 2 iterates until a residual is small that has become nan, so for ever.

nproc: 3
culprit: 2
kind: stuck | missing | slow | nan
hint: rank 2, solve|all_reduce
seconds: 60
"""

import numpy as np

import torsh_runtime as tr


def solve(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-8) -> np.ndarray:
    """Jacobi iterations."""
    diagonal = np.diag(a)
    rest = a - np.diagflat(diagonal)
    x = np.zeros_like(b)
    with np.errstate(all="ignore"):
        while not np.abs(a @ x - b).max() < tolerance:
            x = (b - rest @ x) / diagonal
    return x


def main() -> None:
    tr.init_process_group(timeout=30)
    rank = tr.get_rank()
    for step in range(4):
        a = np.eye(20) * 30 + np.ones((20, 20))
        if rank == 2 and step == 2:
            a[5, 5] = 0.0
        x = solve(a, np.arange(20.0))
        tr.all_reduce(x)


main()
