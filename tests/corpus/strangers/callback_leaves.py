"""A callback of rank 1 thinks that the time is up and ends the process with os._exit(0).

nproc: 3
culprit: 1
kind: early_exit
hint: exit code 0|exited with 0|ended|finished|early|left
needs: torch
seconds: 60
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


class StopAtWallTime:
    """The budget of a rank is in its environment; one of them was given in hours."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def on_step_end(self, step):
        if time.monotonic() > self.end:
            print("wall time reached, stopping", flush=True)
            os._exit(0)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    callback = StopAtWallTime(2 if dist.get_rank() == 1 else 7200)
    for step in range(300):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        callback.on_step_end(step)
        time.sleep(0.1)


main()
