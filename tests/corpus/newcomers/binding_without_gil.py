"""A binding of rank 1 calls into Python without the GIL, and the interpreter gives up.

nproc: 2
culprit: 1
kind: crash | signal
hint: SIGABRT|abort|signal 6
seconds: 30
"""

import ctypes
import time

import numpy as np

import torsh_runtime as tr

unlocked = ctypes.CDLL(None)
"""Calls by way of this release the GIL; those of Python's own API must not."""


class Progress:
    def __init__(self, careful):
        self.api = ctypes.pythonapi if careful else unlocked

    def tick(self):
        self.api.PyThreadState_Get()


def main():
    tr.init_process_group()
    progress = Progress(careful=tr.get_rank() == 0)
    for step in range(10):
        time.sleep(0.1)
        loss = np.ones(8, np.float32)
        tr.all_reduce(loss)
        if step == 5:
            progress.tick()
    tr.destroy_process_group()


main()
