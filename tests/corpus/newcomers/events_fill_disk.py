"""Rank 0 records every step in a SQLite file, until its small disk is full.

nproc: 2
culprit: 0
kind: disk
hint: disk|space|full
needs: disk
seconds: 40
"""

import os
import pathlib
import sqlite3

import numpy as np

import torsh_runtime as tr


class History:
    def __init__(self, path):
        self.base = sqlite3.connect(path)
        self.base.execute("create table steps (step integer, gradient blob)")

    def record(self, step, gradient):
        with self.base:
            self.base.execute("insert into steps values (?, ?)", (step, gradient.tobytes()))


def main():
    tr.init_process_group()
    history = None
    if tr.get_rank() == 0:
        history = History(pathlib.Path(os.environ["CORPUS_DISK"]) / "history.sqlite")
    for step in range(100):
        gradient = np.random.default_rng(step).random(32_768)
        tr.all_reduce(gradient)
        if history:
            history.record(step, gradient)
    tr.destroy_process_group()


main()
