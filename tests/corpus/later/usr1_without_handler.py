"""A requeue signal reaches rank 1, which has no handler for it (rank 0 has).

nproc: 2
culprit: 1
kind: signal
hint: SIGUSR1
seconds: 60
"""

import os
import signal
import subprocess
import time

import numpy as np

import torsh_runtime as tr

stop = False


def on_requeue(signum, frame):
    global stop
    print("requeue requested, will checkpoint")


def main():
    rank = int(os.environ["RANK"])
    if rank == 0:
        signal.signal(signal.SIGUSR1, on_requeue)
    tr.init_process_group(timeout=30)
    # the scheduler's notice before the time limit
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -USR1 {os.getpid()}"])
    for _ in range(100):
        tr.all_reduce(np.ones(100, np.float32))
        time.sleep(0.05)
        if stop:
            break


main()
