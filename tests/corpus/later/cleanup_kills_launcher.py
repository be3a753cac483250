"""A clean-up that kills old launchers of the user's kills the one of its own node, the second.

nproc: 1
nnodes: 2
culprit: node 1
kind: agent | signal
hint: agent|launcher|node
needs: torch
seconds: 120
"""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def find_old_launchers():
    return [int(os.environ["CORPUS_AGENT_PID"])]  # by name, as pgrep would


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    for step in range(300):
        x = torch.full((10,), float(step))
        dist.all_reduce(x)
        if step == 20 and dist.get_rank() == 1:
            for pid in find_old_launchers():
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


main()
