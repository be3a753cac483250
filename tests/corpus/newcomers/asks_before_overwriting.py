"""Rank 0 asks whether it may overwrite a checkpoint, and there is nobody to answer.

nproc: 2
culprit: 0
kind: exception | usage
hint: stdin|standard input|terminal|input
seconds: 30
"""

import pathlib

import numpy as np

import torsh_runtime as tr


def earlier_run(path):
    np.save(path, np.zeros(4))


def save(path, weights):
    if path.exists():
        answer = input(f"{path} exists. Overwrite? [y/N] ")
        if not answer.lower().startswith("y"):
            raise SystemExit("not overwritten")
    np.save(path, weights)


def main():
    tr.init_process_group()
    path = pathlib.Path("weights.npy")
    if tr.get_rank() == 0:
        earlier_run(path)
    weights = np.ones(4)
    tr.all_reduce(weights)
    if tr.get_rank() == 0:
        save(path, weights)
    tr.barrier()
    tr.destroy_process_group()


main()
