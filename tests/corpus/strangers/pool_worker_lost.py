"""A worker of rank 1's multiprocessing pool crashes, and the pool waits for its result for ever.

nproc: 2
culprit: 1
kind: crash | signal | stuck
hint: SIGSEGV|Segmentation|pool|signal 11|child
seconds: 50
"""

import ctypes
import multiprocessing
import os

import numpy as np

import torsh_runtime as tr


def decode(name):
    if name == "broken.mp4":
        ctypes.string_at(0)  # the codec
    return len(name)


def decode_all(names):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.map(decode, names, chunksize=1)


def main():
    tr.init_process_group()
    names = [f"{i}.mp4" for i in range(6)]
    if os.environ["RANK"] == "1":
        names[3] = "broken.mp4"
    frames = np.array([sum(decode_all(names))])
    tr.all_reduce(frames)
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
