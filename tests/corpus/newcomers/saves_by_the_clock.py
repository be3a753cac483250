"""Each rank decides by its own clock when it is time for a checkpoint, which all write together.

nproc: 2
culprit: 0 | 1
kind: mismatch | missing | deadlock
hint: barrier|all_reduce
seconds: 40
"""

import pathlib
import time

import numpy as np

import torsh_runtime as tr


class Saver:
    def __init__(self, folder, every):
        self.folder, self.every = folder, every
        self.last = time.monotonic()
        folder.mkdir(exist_ok=True)

    def maybe_save(self, step, weights):
        if time.monotonic() - self.last < self.every:
            return
        tr.barrier()  # nobody is still writing the one before
        np.save(self.folder / f"{step}-{tr.get_rank()}.npy", weights)
        self.last = time.monotonic()


def load_data(rank):
    time.sleep(0.5 if rank == 0 else 1.0)
    return np.random.default_rng(rank).random((100, 32))


def main():
    tr.init_process_group(timeout=10)
    rank = tr.get_rank()
    data = load_data(rank)
    saver = Saver(pathlib.Path("checkpoints"), every=1.5)
    weights = np.zeros(32)
    for step in range(100):
        time.sleep(0.05)
        grad = data[step] - weights
        tr.all_reduce(grad, tr.ReduceOp.AVG)
        weights += 0.1 * grad
        saver.maybe_save(step, weights)
    tr.destroy_process_group()


main()
