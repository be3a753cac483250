"""An alarm meant for a slow download is never cancelled, and strikes rank 0 in training.

nproc: 3
culprit: 0
kind: signal
hint: SIGALRM|alarm
seconds: 60
"""

import signal
import time

import numpy as np

import torsh_runtime as tr


def download(url, timeout):
    signal.alarm(timeout)  # give up if the server does not answer
    return np.arange(16, dtype=np.float32)


def main():
    group = tr.init_process_group(timeout=30)
    weights = np.empty(16, np.float32)
    if group.rank == 0:
        weights[:] = download("http://models.example/base.bin", timeout=2)
    tr.broadcast(weights, 0)
    for epoch in range(60):
        time.sleep(0.1)
        grads = weights * 0.01
        tr.all_reduce(grads)
        weights -= grads
        if epoch % 10 == 0 and group.rank == 0:
            print("epoch", epoch)


main()
