"""A barrier inside `if rank == 0:`, and no deadline at all.

culprit: 1
kind: missing
hint: barrier, rank 1
"""

import os
import threading

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group()
    tr.all_reduce(np.ones(4))
    if os.environ["RANK"] == "0":
        tr.barrier()
    else:
        threading.Event().wait()  # until a file appears that rank 0 writes after the barrier


main()
