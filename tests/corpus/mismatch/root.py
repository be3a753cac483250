"""Rank 2 believes that another rank has the model.

nproc: 4
culprit: 2
kind: mismatch
hint: rank 2, broadcast, root|src|source
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    weights = np.zeros(100)
    tr.broadcast(weights, 1 if os.environ["RANK"] == "2" else 0)


main()
