"""Somebody has stopped one process (SIGSTOP), to look at it, and forgot it.

nproc: 3
culprit: 2
kind: stopped
hint: rank 2, stopped|SIGSTOP|SIGCONT
"""

import os
import subprocess
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=5)
    for step in range(100):
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)
        if step == 20 and os.environ["RANK"] == "2":
            subprocess.run(["sh", "-c", "kill -STOP $PPID"], check=False)


main()
