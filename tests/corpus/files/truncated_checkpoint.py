"""Rank 1's part of a checkpoint was cut short when the job before was killed.

culprit: 1
kind: file | exception
hint: checkpoint|truncated|damaged|file
"""

import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = os.environ["RANK"]
    path = Path(f"part-{rank}.npy")
    with path.open("wb") as file:
        np.save(file, np.zeros(1 << 16))
    if rank == "1":
        os.truncate(path, 1000)
    tr.init_process_group(timeout=30)
    weights = np.load(path)
    tr.all_reduce(weights)


main()
