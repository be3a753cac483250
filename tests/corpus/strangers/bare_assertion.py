"""Rank 3's batch does not divide among its micro batches: an assertion without a text.

nproc: 4
culprit: 3
kind: exception
hint: rank 3, exit code 1|exited with 1|status 1
seconds: 40
"""

import os

import numpy as np

import torsh_runtime as tr

MICRO = 4


def split(batch):
    assert len(batch) % MICRO == 0
    return np.split(batch, len(batch) // MICRO)


def main():
    tr.init_process_group()
    rank = int(os.environ["RANK"])
    samples = np.arange(64 + (2 if rank == 3 else 0))
    for start in range(0, 64, 16):
        end = start + 16 if start < 48 else len(samples)
        partial = np.zeros(1)
        for micro in split(samples[start:end]):
            partial += micro.sum()
        tr.all_reduce(partial)
    tr.destroy_process_group()


main()
