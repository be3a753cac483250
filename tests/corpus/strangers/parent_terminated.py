"""A clean-up on node 1 ends the parent of its process, which it takes for a wrapper script.

nproc: 1
nnodes: 2
culprit: node 1
kind: agent | signal
hint: SIGTERM|agent|node 1
seconds: 60
"""

import os
import signal
import time

import numpy as np

import torsh_runtime as tr


def end_wrapper():
    """When a job is preempted, the wrapper would start it again."""
    os.kill(int(os.environ["CORPUS_AGENT_PID"]), signal.SIGTERM)


def main():
    tr.init_process_group()
    preempted = tr.get_rank() == 1
    for step in range(100):
        grad = np.ones(8)
        tr.all_reduce(grad)
        time.sleep(0.1)
        if preempted and step == 10:
            end_wrapper()
    tr.destroy_process_group()


main()
