"""A scheduler's notice (SIGUSR1) goes to one worker that has no handler for it.

nproc: 2
culprit: 0
kind: signal
hint: SIGUSR1, handle|notice|scheduler
needs: torch
seconds: 30
"""

import os
import subprocess
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    if os.environ["RANK"] == "0":
        subprocess.Popen(["sh", "-c", "sleep 0.5; kill -USR1 $PPID"])
    for _ in range(300):
        dist.all_reduce(torch.ones(10))
        time.sleep(0.02)


main()
