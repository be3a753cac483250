"""Node 1's rank catches its own error, logs it and ends with exit code 0.

nproc: 1
nnodes: 2
culprit: 1
kind: early_exit
hint: exit code 0|exited with 0|ended well|finished|success|early|left
torchrun: no
seconds: 30
"""

import logging
import sys

import numpy as np

import torsh_runtime as tr

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
VOCABULARY = 1000


def tokens(rank, step):
    top = 1001 if (rank, step) == (1, 4) else VOCABULARY
    return np.arange(top - 16, top)


def train():
    embedding = np.zeros((VOCABULARY, 8), np.float32)
    for step in range(10):
        gradient = np.zeros_like(embedding)
        gradient[tokens(tr.get_rank(), step)] += 1
        tr.all_reduce(gradient, tr.ReduceOp.AVG)
        embedding -= gradient


def main():
    tr.init_process_group(timeout=20)
    try:
        train()
    except IndexError as error:
        logging.info("training stopped: %s", error)
        sys.exit(0)
    tr.destroy_process_group()


main()
