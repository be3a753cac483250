"""Rank 1 sends its stderr to a log file, and there its exception goes.

nproc: 2
culprit: 1
kind: exception | exit_code
hint: exit code 1|exited with 1|status 1|rank1.log
seconds: 30
"""

import os
import pathlib

import numpy as np

import torsh_runtime as tr


def log_to_files(rank):
    """Only rank 0 is to be seen on the terminal."""
    folder = pathlib.Path("logs")
    folder.mkdir(exist_ok=True)
    if rank != 0:
        file = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)


def main():
    rank = int(os.environ["RANK"])
    log_to_files(rank)
    tr.init_process_group()
    bins = [0] * (12 if rank == 0 else 9)
    for step in range(12):
        bins[step] += 1
        loss = np.array(bins[:1], np.float64)
        tr.all_reduce(loss)
        print(f"step {step}", flush=True)
    tr.destroy_process_group()


main()
