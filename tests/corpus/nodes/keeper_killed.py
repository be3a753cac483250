"""Somebody kills torsh-keeper, the parent of all workers.

nproc: 2
nnodes: 1
culprit: none
kind: agent
hint: keeper
torchrun: no
"""

import os
import signal
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    for step in range(1000):
        if step == 20 and os.environ["RANK"] == "0":
            os.kill(os.getppid(), signal.SIGKILL)
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)


main()
