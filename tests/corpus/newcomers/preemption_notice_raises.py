"""The scheduler's notice to rank 1 becomes an exception, in a handler of the script's own.

nproc: 2
culprit: 1
kind: signal | exception
hint: rank 1
needs: torch
seconds: 60
"""

import os
import signal
import subprocess
import time
from datetime import timedelta

import torch
import torch.distributed as dist


class Preempted(BaseException):
    pass


def on_notice(number, frame):
    raise Preempted(f"notice {signal.Signals(number).name}: the node is wanted by another job")


def scheduler():
    """It tells one process of the job only."""
    subprocess.Popen(["sh", "-c", f"sleep 2; kill -USR2 {os.getpid()}"])


def main():
    signal.signal(signal.SIGUSR2, on_notice)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    if dist.get_rank() == 1:
        scheduler()
    for _ in range(100):
        time.sleep(0.1)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
