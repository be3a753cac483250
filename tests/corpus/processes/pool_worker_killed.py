"""A process of multiprocessing's Pool is killed, and map() waits for its result for ever.

nproc: 2
culprit: 1
kind: stuck | signal | deadlock
hint: rank 1, child|process
"""

import os
import signal
from multiprocessing import Pool

import numpy as np

import torsh_runtime as tr


def decode(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel or an administrator does
    return number


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group()
    with Pool(2) as pool:
        for first in (0, 5):
            decoded = pool.map(decode, range(first, first + (4 if rank == 1 else 1)), 1)
            tr.all_reduce(np.array([sum(decoded)]))


if __name__ == "__main__":
    main()
