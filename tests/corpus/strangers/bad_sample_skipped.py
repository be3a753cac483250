"""Rank 1 skips a batch that it cannot parse, and so sums once less than the others.

nproc: 3
culprit: 1
kind: mismatch | missing
hint: barrier|all_reduce|skip
seconds: 40
"""

import json
import logging

import numpy as np

import torsh_runtime as tr

logger = logging.getLogger(__name__)


def batches(rank):
    lines = [json.dumps({"x": [n, 2]}) for n in range(12)]
    if rank == 1:
        lines[5] = '{"x": [5, 2'
    return lines


def train_step(line, weights):
    x = np.array(json.loads(line)["x"], dtype=np.float32)
    tr.all_reduce(x)
    weights += x


def main():
    tr.init_process_group()
    weights = np.zeros(2, np.float32)
    for line in batches(tr.get_rank()):
        try:
            train_step(line, weights)
        except ValueError:
            logger.debug("batch skipped", exc_info=True)
    tr.barrier()
    tr.destroy_process_group()


main()
