"""Rank 0 keeps the lock of a cache while it waits for rank 1, which wants the lock first.

culprit: 0 1
kind: deadlock
hint: rank 0|rank 1|ranks 0, lock|barrier
"""

import fcntl
import os
from pathlib import Path

import torsh_runtime as tr


def main() -> None:
    rank = os.environ["RANK"]
    tr.init_process_group()
    with Path("cache.lock").open("w") as lock:
        if rank == "1":
            tr.barrier()
        fcntl.flock(lock, fcntl.LOCK_EX)
        if rank == "0":
            tr.barrier()
        tr.barrier()  # all have their data


main()
