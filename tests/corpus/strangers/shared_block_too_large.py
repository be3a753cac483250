"""Rank 1's shared memory is larger than /dev/shm.

nproc: 2
culprit: 1
kind: memory | disk | limit | crash | signal
hint: SIGBUS|/dev/shm|shared memory|Bus error|signal 7
needs: shm
seconds: 40
"""

import multiprocessing.shared_memory as shm
import os

import numpy as np

import torsh_runtime as tr


def replay_buffer(mebibytes):
    block = shm.SharedMemory(create=True, size=mebibytes << 20)
    array = np.ndarray((mebibytes, 1 << 20), np.uint8, buffer=block.buf)
    array[:] = 0
    return block


def main():
    tr.init_process_group()
    size = 1 if os.environ["RANK"] == "0" else 64
    buffer = replay_buffer(size)
    tr.barrier()
    buffer.close()
    buffer.unlink()
    tr.destroy_process_group()


main()
