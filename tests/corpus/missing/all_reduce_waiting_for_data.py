"""Rank 1 waits for a batch that its loader never delivers, while the others average gradients.

nproc: 4
culprit: 1
kind: missing
hint: all_reduce, rank 1
"""

import os
import queue

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=4)
    batches: queue.Queue[int] = queue.Queue()
    for number in range(3 if rank == 1 else 10):
        batches.put(number)
    for _ in range(10):
        batches.get()
        tr.all_reduce(np.ones(100, np.float32))


main()
