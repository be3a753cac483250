"""The disk is full when rank 0 saves a checkpoint, after the others have gone on.

culprit: 0
kind: disk
hint: disk|space, df|full|quota
needs: disk
"""

import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    weights = np.zeros(1 << 18)
    for step in range(10):
        tr.all_reduce(weights[:100])
        if os.environ["RANK"] == "0":
            with Path(os.environ["CORPUS_DISK"], f"step-{step}.npy").open("wb") as file:
                file.write(weights.tobytes())


main()
