"""A lock file that a killed job left behind: rank 0 waits for it to go away.

nproc: 3
culprit: 0
kind: stuck | missing | file | deadlock
hint: rank 0, acquire|lock|sleep
seconds: 60
"""

import os
import time

import numpy as np

import torsh_runtime as tr


class SoftLock:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        while True:
            try:
                self.fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
                return self
            except FileExistsError:
                time.sleep(0.05)

    def __exit__(self, *exc):
        os.close(self.fd)
        os.remove(self.path)


def build_index():
    with SoftLock("index.lock"):
        np.save("index.npy", np.arange(1000))


def main():
    tr.init_process_group(timeout=30)
    if tr.get_rank() == 0:
        open("index.lock", "w").close()  # last week's job, killed at its time limit
        build_index()
    tr.barrier()
    index = np.load("index.npy")
    tr.all_reduce(index[:10].copy())


main()
