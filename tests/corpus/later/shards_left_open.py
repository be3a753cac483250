"""Rank 1 opens one shard after another and closes none, until it may open no more.

culprit: 1
kind: limit | exception | file
hint: open files|descriptors|EMFILE|nofile
seconds: 60
"""

import os
import resource
from typing import ClassVar

import numpy as np

import torsh_runtime as tr


class ShardReader:
    opened: ClassVar[list] = []  # keeps them for the next epoch

    def __init__(self, path):
        self.file = open(path, "rb")
        self.opened.append(self.file)

    def read(self):
        return np.frombuffer(self.file.read(32), np.uint8).astype(np.float32)


def main():
    tr.init_process_group(timeout=30)
    rank = int(os.environ["RANK"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    for i in range(8):
        with open(f"shard-{rank}-{i}.bin", "wb") as f:
            f.write(bytes(32))
    epochs = 200 if rank == 1 else 8
    for epoch in range(200):
        for i in range(8):
            reader = ShardReader(f"shard-{rank}-{i}.bin")
            x = reader.read()
            if epochs == 8:
                reader.file.close()
                ShardReader.opened.clear()
            tr.all_reduce(x)


main()
