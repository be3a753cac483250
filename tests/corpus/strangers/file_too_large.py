"""The limit of a file's size is below that of rank 0's checkpoint.

nproc: 2
culprit: 0
kind: limit | disk | file
hint: file larger|File too large|EFBIG|ulimit -f
seconds: 30
"""

import os
import resource

import numpy as np

import torsh_runtime as tr


def save(path, arrays):
    with open(path + ".part", "wb") as file:
        for array in arrays:
            file.write(array.tobytes())
    os.replace(path + ".part", path)


def main():
    tr.init_process_group()
    layers = [np.zeros(100_000, np.float32) for _ in range(4)]
    for layer in layers:
        tr.all_reduce(layer)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    if tr.get_rank() == 0:
        save("model.bin", layers)
    tr.barrier()
    tr.destroy_process_group()


main()
