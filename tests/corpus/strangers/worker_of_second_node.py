"""Local rank 1 of node 1 divides by the size of an empty shard.

nproc: 2
nnodes: 2
culprit: 3
kind: exception
hint: ZeroDivisionError|division
seconds: 60
"""

import os

import numpy as np

import torsh_runtime as tr

SAMPLES = [7, 7, 7, 0]


def weight_of(rank):
    return sum(SAMPLES) / SAMPLES[rank]


def main():
    tr.init_process_group()
    rank = int(os.environ["RANK"])
    for epoch in range(3):
        loss = np.ones(2, np.float32)
        if epoch == 2:
            loss *= weight_of(rank)
        tr.all_reduce(loss)
    tr.destroy_process_group()


main()
