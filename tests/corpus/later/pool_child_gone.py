"""A process of rank 1's multiprocessing.Pool dies, and map() waits for its result for ever.

culprit: 1
kind: stuck | missing | deadlock | signal
hint: pool|child
seconds: 60
"""

import multiprocessing as mp
import os

import numpy as np

import torsh_runtime as tr


def tokenize(line: str) -> int:
    if "\0" in line:
        os.kill(os.getpid(), 9)  # the kernel was short of memory
    return len(line.split())


def main() -> None:
    rank = int(os.environ["RANK"])
    corpus = ["to be or not to be"] * 64
    if rank == 1:
        corpus[40] = "\0" * 100
    with mp.get_context("fork").Pool(2) as pool:
        lengths = pool.map(tokenize, corpus, chunksize=8)
    tr.init_process_group(timeout=30)
    total = np.array([sum(lengths)])
    tr.all_reduce(total)
    print(total)


if __name__ == "__main__":
    main()
