"""Rank 1 keeps the features of all images in a cache until the job's memory is used up.

nproc: 2
culprit: 1
kind: memory
hint: out of memory|OOM|memory
needs: cgroup
seconds: 60
"""

import functools

import numpy as np

import torsh_runtime as tr


@functools.cache
def features(index):
    return np.random.default_rng(index).random((512, 1024))  # 4 MiB


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    for step in range(300):
        index = step if rank == 1 else 0
        mean = features(index).mean(keepdims=True)
        tr.all_reduce(mean)
    print("end")
    tr.destroy_process_group()


main()
