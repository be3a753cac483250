"""Rank 1 opens a shard for each sample and closes none.

nproc: 2
culprit: 1
kind: limit
hint: Too many open files|EMFILE|RLIMIT_NOFILE
seconds: 30
"""

import os
import resource
import tempfile

import numpy as np

import torsh_runtime as tr


class Shards:
    def __init__(self, folder, keep_open):
        self.folder, self.keep_open, self.handles = folder, keep_open, []

    def read(self, index):
        path = os.path.join(self.folder, f"{index}.bin")
        handle = open(path, "wb+")
        handle.write(bytes(8))
        if self.keep_open:
            self.handles.append(handle)
        else:
            handle.close()


tr.init_process_group()
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
with tempfile.TemporaryDirectory() as folder:
    shards = Shards(folder, keep_open=tr.get_rank() == 1)
    for index in range(400):
        shards.read(index)
        seen = np.array([index], dtype=np.int32)
        tr.all_reduce(seen)
tr.destroy_process_group()
