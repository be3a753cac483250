"""Rank 1 keeps the graph of every step, until the container's limit is hit.

culprit: 1
kind: memory
hint: out of memory|oom, cgroup|container|limit
needs: cgroup
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    losses = []
    for _ in range(200):
        activations = np.ones(1 << 20)
        if os.environ["RANK"] == "1":
            losses.append(activations * 2)  # the whole array, and not its mean
        tr.all_reduce(activations[:8])
        time.sleep(0.01)


main()
