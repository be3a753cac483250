"""Rank 1 evaluates on the whole set instead of its part, while the others wait for it.

nproc: 3
culprit: 1
kind: slow | missing | stuck
hint: rank 1, all_reduce|evaluate
seconds: 60
"""

import time

import numpy as np

import torsh_runtime as tr


def evaluate(samples):
    correct = 0
    for sample in samples:
        time.sleep(0.02)  # generate an answer
        correct += sample % 3 == 0
    return correct


def main():
    tr.init_process_group(timeout=10)
    rank, world = tr.get_rank(), tr.get_world_size()
    everything = list(range(1800))
    for _ in range(5):
        tr.all_reduce(np.ones(100))
    part = everything if rank == 1 else everything[rank:60:world]
    score = np.array([evaluate(part)])
    tr.all_reduce(score)
    print("accuracy", score[0] / len(everything))


main()
