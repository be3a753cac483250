"""Rank 2 takes the weights from rank 1, which it believes to be the best, the others from rank 0.

nproc: 3
culprit: 2
kind: mismatch | missing
hint: broadcast, src|source|root|from rank
seconds: 60
"""

import numpy as np

import torsh_runtime as tr


def best_of(scores):
    return max(range(len(scores)), key=scores.__getitem__)


def main():
    tr.init_process_group(timeout=20)
    rank = tr.get_rank()
    scores = [0.91, 0.905, 0.87]
    if rank == 2:  # an old results file
        scores = [0.91, 0.95, 0.87]
    population = np.full(64, rank, np.float32)
    tr.all_reduce(population)
    tr.broadcast(population, src=best_of(scores))
    tr.barrier()


main()
