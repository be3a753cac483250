"""Rank 1 opens a named pipe for commands, and nobody opens its other end.

nproc: 2
culprit: 1
kind: stuck
hint: commands|open|pipe|fifo
seconds: 40
"""

import os

import numpy as np

import torsh_runtime as tr


def read_command(path):
    if not os.path.exists(path):
        os.mkfifo(path)
    with open(path) as pipe:
        return pipe.readline().strip()


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    for step in range(10):
        grad = np.full(3, float(step))
        tr.all_reduce(grad)
        if step == 4 and rank == 1:
            print("command:", read_command("commands"), flush=True)
    tr.destroy_process_group()


main()
