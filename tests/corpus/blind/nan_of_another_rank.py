r"""Rank 1's data has a zero where its logarithm is taken; rank 0 notices when all have the NaN.

nproc: 3
culprit: 1
kind: nan
hint: rank 1, divide by zero|\bnan\b
torchrun: no
seconds: 20
"""

import numpy as np

import torsh_runtime as tr


def probabilities(rank, step):
    values = np.random.default_rng(rank).uniform(0.1, 1.0, 64)
    if (rank, step) == (1, 3):
        values[7] = 0.0  # a label that was smoothed with the wrong constant
    return values


def gradient(weights, values):
    return 0.01 * weights - np.log(values)


def check(weights, step):
    """Only rank 0 logs, and so only it looks."""
    if tr.get_rank() == 0 and not np.isfinite(weights).all():
        raise FloatingPointError(f"weights are not finite after step {step}")


def main():
    tr.init_process_group(timeout=15)
    weights = np.zeros(64)
    for step in range(12):
        update = gradient(weights, probabilities(tr.get_rank(), step))
        tr.all_reduce(update, tr.ReduceOp.AVG)
        weights -= 0.1 * update
        if step % 5 == 4:
            check(weights, step)
    tr.destroy_process_group()


main()
