"""Rank 0 enters a barrier while it holds the lock of a file that rank 1 needs to get there.

nproc: 2
culprit: 0
kind: deadlock
hint: flock|lock, barrier
seconds: 40
"""

import contextlib
import fcntl
import time

import numpy as np

import torsh_runtime as tr


@contextlib.contextmanager
def locked(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare(rank):
    if rank == 1:
        time.sleep(1)
    with locked("prepare.lock"):
        if rank == 0:
            np.save("prepared.npy", np.ones(3))
            tr.barrier()  # the others may read it now
    if rank != 0:
        tr.barrier()
    return np.load("prepared.npy")


tr.init_process_group()
data = prepare(tr.get_rank())
tr.all_reduce(data)
tr.destroy_process_group()
