"""A container with the small /dev/shm that Docker gives: arrays for the loaders do not fit.

culprit: 0 1
kind: memory | crash
hint: /dev/shm, SIGBUS|full|size
needs: shm
"""

import os
from multiprocessing.shared_memory import SharedMemory

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=30)
    memory = SharedMemory(create=True, size=64 << 20)  # which takes none yet
    queue = np.frombuffer(memory.buf, np.uint8)
    for start in range(0, queue.size, 1 << 20):
        queue[start : start + (1 << 20)] = rank
    tr.all_reduce(np.ones(4))


main()
