"""The machine of the second node is paused: its agent and its workers stand still.

nproc: 1
nnodes: 2
culprit: node 1
kind: agent | network | stopped
hint: 10.77.0.2|node 1, lost|sign of life|stopped|answer
needs: netns
seconds: 40
"""

import os
import signal
import subprocess
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    for step in range(1000):
        if step == 20 and os.environ["RANK"] == "1":
            os.kill(int(os.environ["CORPUS_AGENT_PID"]), signal.SIGSTOP)
            subprocess.run(["sh", "-c", "kill -STOP $PPID"], check=False)
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)


main()
