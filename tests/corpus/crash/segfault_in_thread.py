"""A thread that reads ahead touches freed memory.

nproc: 2
culprit: 1
kind: crash
hint: SIGSEGV, compiled code
"""

import ctypes
import os
import threading
import time

import numpy as np

import torsh_runtime as tr


def prefetch(step: int) -> None:
    if step == 3 and os.environ["RANK"] == "1":
        ctypes.string_at(16)


def main() -> None:
    tr.init_process_group(timeout=30)
    gradient = np.zeros(1000, np.float32)
    for step in range(1000):
        reader = threading.Thread(target=prefetch, args=(step,))
        reader.start()
        tr.all_reduce(gradient)
        reader.join()
        time.sleep(0.05)


main()
