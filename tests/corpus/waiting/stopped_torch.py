"""A process of a training with torch was stopped (SIGSTOP).

nproc: 2
culprit: 0
kind: stopped
hint: rank 0, stopped|SIGSTOP|SIGCONT
needs: torch
seconds: 40
"""

import os
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    for step in range(20):
        dist.all_reduce(torch.ones(10))
        if step == 5 and os.environ["RANK"] == "0":
            subprocess.run(["sh", "-c", "kill -STOP $PPID"], check=False)


main()
