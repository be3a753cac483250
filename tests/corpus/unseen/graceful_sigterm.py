"""A maintenance daemon sends rank 2 a SIGTERM; it ends at once and politely, with status 0.

nproc: 3
culprit: 2
kind: early_exit | signal
hint: rank 2, exit code 0|status 0|ended|left|SIGTERM
needs: torch
seconds: 40
"""

import logging
import os
import signal
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")


def preempted(number: int, frame: object) -> None:
    logging.info("got %s, shutting down gracefully", signal.Signals(number).name)
    sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, preempted)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    gradient = torch.ones(1000)
    for step in range(40):
        if rank == 2 and step == 10:  # the daemon, which drains this slot
            subprocess.run(["sh", "-c", f"kill -TERM {os.getpid()}"], check=True)
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


main()
