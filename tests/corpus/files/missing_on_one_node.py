"""The data was copied to one node only.

nproc: 1
nnodes: 2
culprit: 1
kind: file
hint: path|directory|file
seconds: 30
"""

import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    path = Path("/opt/corpus-data/train.bin")
    if os.environ["GROUP_RANK"] == "1":
        tr.all_reduce(np.array([path.stat().st_size]))
    else:
        tr.all_reduce(np.array([4096]))
    tr.barrier()


main()
