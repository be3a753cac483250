"""Rank 0 is done, but its heartbeat thread is none of the daemons, so its process never ends.

nproc: 2
culprit: 0
kind: stuck
hint: thread|shut
seconds: 60
"""

import os
import threading
import time

import numpy as np


def heartbeat(path):
    while True:
        with open(path, "w") as file:
            file.write(str(time.time()))
        time.sleep(1)


def train(rank):
    weights = np.zeros(16)
    for step in range(20):
        weights += np.random.default_rng(step + rank).normal(size=16)
        time.sleep(0.05)
    return weights


rank = int(os.environ["RANK"])
if rank == 0:
    threading.Thread(target=heartbeat, args=("heartbeat",)).start()
np.save(f"weights-{rank}.npy", train(rank))
print(f"rank {rank}: training is complete")
