"""Rank 1 sets an alarm for a slow download and forgets to switch it off.

nproc: 2
culprit: 1
kind: signal
hint: SIGALRM|Alarm clock|signal 14
seconds: 30
"""

import signal
import time

import numpy as np

import torsh_runtime as tr


def download(url):
    signal.alarm(4)
    time.sleep(0.1)
    return np.zeros(16)


tr.init_process_group()
weights = np.empty(16)
if tr.get_rank() == 1:
    weights = download("http://models.example/tiny.npz")
tr.broadcast(weights, src=1)
for _ in range(200):
    time.sleep(0.1)
    grad = np.ones(16)
    tr.all_reduce(grad)
tr.destroy_process_group()
