"""One worker is interrupted (SIGINT), and says so by a KeyboardInterrupt.

nproc: 3
culprit: 1
kind: signal
hint: SIGINT|interrupt
"""

import os
import subprocess
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if os.environ["RANK"] == "1":
        subprocess.Popen(["sh", "-c", "sleep 0.5; kill -INT $PPID"])
    for _ in range(300):
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)


main()
