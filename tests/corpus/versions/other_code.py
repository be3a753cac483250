"""One of three nodes has an older checkout of the code, in which a gather is still an all_gather.

nproc: 1
nnodes: 3
culprit: 2
kind: mismatch | version
hint: rank 2, gather
seconds: 30
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=15)
    score = np.ones(4)
    tr.all_reduce(score)
    parts = [np.empty(4) for _ in range(3)]
    if os.environ["GROUP_RANK"] == "2":
        tr.all_gather(parts, score)
    else:
        tr.gather(score, parts if rank == 0 else None, 0)


main()
