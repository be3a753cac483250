"""Rank 2 was started under a limit of its CPU time, as of a shared login node.

nproc: 3
culprit: 2
kind: limit | signal
hint: SIGXCPU|CPU time|RLIMIT_CPU
seconds: 60
"""

import resource

import numpy as np

import torsh_runtime as tr


def tokenize(rank):
    if rank == 2:
        used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (used + 2, used + 60))
        words = 0
        while True:
            words += len(("the quick brown fox " * 1000).split())
            if words > 10**11:
                return words
    return 1


tr.init_process_group(timeout=120)
count = np.array([tokenize(tr.get_rank())])
tr.all_reduce(count)
print("tokens:", count)
