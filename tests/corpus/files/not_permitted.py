"""Rank 1 may not write where checkpoints go.

culprit: 1
kind: permission
hint: permission|owner|mode|may not
needs: root
"""

import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=30)
    folder = Path("checkpoints")
    if rank == 0:
        folder.mkdir(mode=0o700)
    tr.barrier()
    if rank == 1:  # it runs as somebody else there
        os.setresuid(54323, 54323, 54323)
    (folder / f"part-{rank}").write_text("0.5")
    tr.all_reduce(np.ones(4))


main()
