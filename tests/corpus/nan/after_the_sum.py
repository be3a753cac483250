"""Rank 2 has a loss of NaN; the sum spreads it, and all ranks give up in the same step.

nproc: 3
culprit: 2
kind: nan
hint: nan|finite|inf, rank 2
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    for step in range(5):
        loss = np.array([np.log(-1.0) if os.environ["RANK"] == "2" and step == 3 else 0.5])
        tr.all_reduce(loss, tr.ReduceOp.AVG)
        if not np.isfinite(loss).all():
            raise FloatingPointError(f"loss is {loss[0]} at step {step}")


main()
