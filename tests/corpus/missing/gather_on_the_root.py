"""Only the root gathers; rank 1 went on to write its own results.

culprit: 1
kind: missing
hint: gather, rank 1
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=4)
    score = np.ones(4)
    tr.all_reduce(score)
    if rank == 0:
        tr.gather(score, [np.empty(4), np.empty(4)], 0)
    else:
        time.sleep(60)


main()
