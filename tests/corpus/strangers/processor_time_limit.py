"""The queue gives each process two seconds of processor time; rank 0 needs more.

nproc: 2
culprit: 0
kind: limit | signal
hint: SIGXCPU|CPU time|signal 24
seconds: 60
"""

import resource
import time

import numpy as np

import torsh_runtime as tr


def queue_limits(seconds):
    spent = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + seconds, -1))


def simulate(steps):
    state = np.random.default_rng(0).random((128, 128))
    for _ in range(steps):
        state = np.cos(state @ state.T)
    return state.mean(keepdims=True).reshape(1)


tr.init_process_group()
queue_limits(2)
result = simulate(2_000_000 if tr.get_rank() == 0 else 10)
tr.all_reduce(result)
tr.destroy_process_group()
