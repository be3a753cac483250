"""Rank 0 is at the barrier within a transaction, and rank 1 cannot write before it ends.

nproc: 2
culprit: 0 | 1
kind: deadlock | exception | file
hint: barrier|lock
seconds: 40
"""

import sqlite3
import time

import numpy as np

import torsh_runtime as tr


def connect():
    base = sqlite3.connect("runs.sqlite", timeout=4, isolation_level=None)
    base.execute("create table if not exists runs (rank integer, loss real)")
    return base


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    if rank == 0:
        connect()
    tr.barrier()
    base = connect()
    loss = np.array([1.0 + rank])
    if rank == 0:
        base.execute("begin immediate")
        base.execute("insert into runs values (?, ?)", (0, loss[0]))
        tr.barrier()  # all are to be seen at once
        base.execute("commit")
    else:
        time.sleep(0.5)
        base.execute("insert into runs values (?, ?)", (rank, loss[0]))
        tr.barrier()
    tr.all_reduce(loss)
    tr.destroy_process_group()


main()
