"""Rank 1 opens a named pipe that nobody writes to.

culprit: 1
kind: stuck
hint: rank 1, pipe|open|file|I/O
"""

import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = os.environ["RANK"]
    path = Path(f"features-{rank}")
    if rank == "1":
        os.mkfifo(path)
    else:
        path.write_text("1 2 3")
    tr.init_process_group()
    tr.barrier()
    tr.all_reduce(np.array(path.read_text().split()[:3], np.int64))


main()
