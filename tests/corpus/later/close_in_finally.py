"""Rank 2 fails, and then its clean-up fails as well, with the error that one sees last.

nproc: 3
culprit: 2
kind: exception
hint: ValueError|exit code 1|exitcode +: 1
seconds: 60
"""

import numpy as np

import torsh_runtime as tr


class Writer:
    def __init__(self, path):
        self.path = path
        self.file = None

    def log(self, step, value):
        if self.file is None:
            self.file = open(self.path, "w")
        self.file.write(f"{step} {value}\n")

    def close(self):
        self.file.close()


def augment(image, rank):
    width = 224 if rank != 2 else 222
    return image[:width].reshape(32, -1)


def main():
    tr.init_process_group(timeout=30)
    rank = tr.get_rank()
    writer = Writer(f"metrics-{rank}.txt")
    try:
        for step in range(5):
            x = augment(np.ones(224, np.float32), rank)
            tr.all_reduce(x)
            writer.log(step, x.sum())
    finally:
        writer.close()
        tr.destroy_process_group()


main()
