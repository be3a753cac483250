"""A script that keeps the machine responsive stops rank 1, and does not let it go on.

nproc: 3
culprit: 1
kind: stopped
hint: stopped|SIGSTOP|state T
seconds: 60
"""

import os
import subprocess
import time

import numpy as np

import torsh_runtime as tr


def babysit(pid):
    """Pauses a process while the users' desktop is busy."""
    return subprocess.Popen(
        ["sh", "-c", f"sleep 0.7; kill -STOP {pid}; sleep 60; kill -CONT {pid}"]
    )


tr.init_process_group(timeout=30)
if tr.get_rank() == 1:
    babysit(os.getpid())
for step in range(200):
    x = np.full(1000, step, np.float32)
    tr.all_reduce(x)
    time.sleep(0.02)
