"""Rank 0 keeps every checkpoint, until the file system is full.

nproc: 2
culprit: 0
kind: disk
hint: No space left|full|ENOSPC
needs: disk
seconds: 40
"""

import os
import pathlib

import numpy as np

import torsh_runtime as tr

DISK = pathlib.Path(os.environ["CORPUS_DISK"])


class Checkpointer:
    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir(exist_ok=True)

    def save(self, step, weights):
        with open(self.folder / f"step{step:05}.npy", "wb") as file:
            np.save(file, weights)


tr.init_process_group()
checkpointer = Checkpointer(DISK / f"ckpt{tr.get_rank()}")
weights = np.zeros(200_000)
for step in range(50):
    grad = np.ones_like(weights)
    tr.all_reduce(grad)
    weights -= 0.01 * grad
    if tr.get_rank() == 0:
        checkpointer.save(step, weights)
    tr.barrier()
tr.destroy_process_group()
