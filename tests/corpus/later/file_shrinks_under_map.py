"""Rank 0 rewrites the token file, shorter, while rank 1 still has it mapped.

culprit: 0 | 1
kind: crash | signal | file
hint: SIGBUS|bus error
seconds: 60
"""

import os

import numpy as np

import torsh_runtime as tr

PATH = "tokens.bin"


def write(count):
    with open(PATH, "wb") as f:
        f.write(np.arange(count, dtype=np.int32).tobytes())


def main():
    tr.init_process_group(timeout=30)
    rank = tr.get_rank()
    if rank == 0:
        write(1 << 20)
    tr.barrier()
    tokens = np.memmap(PATH, np.int32, "r") if rank == 1 else np.zeros(1 << 20, np.int32)
    for epoch in range(3):
        tr.barrier()
        if rank == 0 and epoch == 1:
            write(1 << 10)  # deduplicated
            print(os.path.getsize(PATH))
        tr.barrier()
        total = np.array([tokens[-1000:].sum()])
        tr.all_reduce(total)


main()
