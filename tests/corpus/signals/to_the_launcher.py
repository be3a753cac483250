"""The scheduler ends the job: SIGTERM to the launcher.

nproc: 2
culprit: none
kind: signal
hint: SIGTERM
"""

import os
import signal
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    for step in range(300):
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)
        if step == 20 and os.environ["RANK"] == "0":
            os.kill(int(os.environ["CORPUS_AGENT_PID"]), signal.SIGTERM)


main()
