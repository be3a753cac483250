"""Rank 2 was started under a limit of its CPU time, as of a shared login node.

nproc: 3
culprit: 2
kind: limit | signal
hint: SIGXCPU|CPU time|RLIMIT_CPU
seconds: 60
"""

import resource
import time

import numpy as np

import torsh_runtime as tr


def count_words(enough):
    words = 0
    while not enough(words):
        words += len(("the quick brown fox " * 1000).split())
    return words


def tokenize(rank):
    if rank == 2:
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used, used + 60))
        return count_words(lambda words: words > 10**11)
    return 1


count_words(lambda words: time.process_time() > 1)  # a first pass, as long as the limit
tr.init_process_group(timeout=120)
count = np.array([tokenize(tr.get_rank())])
tr.all_reduce(count)
print("tokens:", count)
