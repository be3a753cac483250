"""Rank 2 takes the logarithm of zero; rank 0 sees the sum of the losses and gives up.

nproc: 3
culprit: 0 | 1 | 2  # numpy's warnings are off, and only rank 0 looks, at the sum of all
kind: nan
hint: nan|inf|not finite
seconds: 30
"""

import logging

import numpy as np

import torsh_runtime as tr

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
log = logging.getLogger("train")
np.seterr(all="ignore")


def cross_entropy(probabilities):
    return -np.log(probabilities) * probabilities


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    rng = np.random.default_rng(rank)
    for step in range(20):
        probabilities = rng.uniform(0.1, 0.9, 16)
        if rank == 2 and step == 7:
            probabilities[3] = 0.0
        loss = cross_entropy(probabilities).mean(keepdims=True)
        tr.all_reduce(loss)
        log.info("step %d loss %.4f", step, loss[0])
        if rank == 0 and not np.isfinite(loss[0]):
            raise FloatingPointError(f"loss is {loss[0]} at step {step}")
    tr.destroy_process_group()


main()
