"""Rank 0 keeps a transaction open across an exchange with rank 1, which wants to write as well.

culprit: 0 | 1
kind: exception | file | deadlock
hint: locked|OperationalError|exit code 1|exitcode +: 1
seconds: 60
"""

import sqlite3

import numpy as np

import torsh_runtime as tr


def connect():
    db = sqlite3.connect("trials.db", timeout=2.0, isolation_level=None)
    db.execute("create table if not exists trials (rank integer, step integer, loss real)")
    return db


def record(db, rank, step, loss):
    db.execute("insert into trials values (?, ?, ?)", (rank, step, loss))


def main():
    tr.init_process_group(timeout=30)
    rank = tr.get_rank()
    if rank == 0:
        connect().close()
    tr.barrier()
    db = connect()
    for step in range(3):
        if rank == 0:
            db.execute("begin immediate")  # one transaction for all of the step
        tr.barrier()
        record(db, rank, step, 0.1 * step)
        loss = np.array([0.1])
        tr.all_reduce(loss)
        if rank == 0:
            db.execute("commit")


main()
