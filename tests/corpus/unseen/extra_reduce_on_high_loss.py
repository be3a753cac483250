"""Rank 2's loss is high in one step, and it sums up something that the others do not.

nproc: 3
culprit: 2
kind: mismatch
hint: all_reduce, rank 2, broadcast|shape|elements|bytes
seconds: 30
"""

import os

import numpy as np

import torsh_runtime as tr


def loss_of(step: int, rank: int) -> float:
    return 7.5 if (step, rank) == (5, 2) else 1 / (step + 1)


def main() -> None:
    tr.init_process_group(timeout=10)
    rank = int(os.environ["RANK"])
    weights = np.zeros(512, np.float32)
    for step in range(10):
        loss = loss_of(step, rank)
        if loss > 5:
            print(f"rank {rank}: loss {loss} in step {step}, looking at it", flush=True)
            statistics = np.array([loss, 1])
            tr.all_reduce(statistics)
        gradient = np.full(512, loss, np.float32)
        tr.all_reduce(gradient, tr.ReduceOp.AVG)
        weights -= gradient
        tr.broadcast(weights, 0)
    tr.destroy_process_group()


main()
