"""The agent of the second node is killed.

nproc: 2
nnodes: 2
culprit: node 1
kind: agent
hint: 10.77.0.2|node 1, lost|died|killed|sign of life
needs: netns
seconds: 30
"""

import os
import signal
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    for step in range(1000):
        if step == 20 and os.environ["RANK"] == "2":
            os.kill(int(os.environ["CORPUS_AGENT_PID"]), signal.SIGKILL)
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)


main()
