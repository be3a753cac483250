"""The child that builds rank 0's index fails; its parent sees nothing but an exit code.

nproc: 2
culprit: 0
kind: exception
hint: rank 0, exit code 1|exited with 1|status 1
seconds: 40
"""

import multiprocessing as mp
import os

import numpy as np

import torsh_runtime as tr


def build_index(rank):
    documents = [] if rank == 0 else [3, 4, 5]
    mean = sum(documents) / len(documents)
    np.save(f"index{rank}.npy", np.full(4, mean))


def main():
    tr.init_process_group()
    rank = int(os.environ["RANK"])
    child = mp.get_context("fork").Process(target=build_index, args=(rank,))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"index builder failed with exit code {child.exitcode}")
    index = np.load(f"index{rank}.npy")
    tr.all_reduce(index)
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
