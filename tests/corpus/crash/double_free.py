"""A binding frees a buffer twice, and the C library gives up.

culprit: 1
kind: crash
hint: SIGABRT, compiled|library|abort|memory
"""

import ctypes
import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    for _ in range(3):
        tr.all_reduce(np.ones(8, np.float32))
        time.sleep(0.1)
    if os.environ["RANK"] == "1":
        buffers = [ctypes.c_void_p(libc.malloc(4096)) for _ in range(2)]
        for buffer in (*buffers, buffers[0]):
            libc.free(buffer)
        libc.abort()  # where the C library takes no notice
    tr.barrier()


main()
