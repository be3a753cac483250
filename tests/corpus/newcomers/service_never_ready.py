"""Rank 0 starts a feature service and waits for its line "ready", which never comes.

nproc: 2
culprit: 0
kind: stuck
hint: pipe|read
needs: torch
seconds: 60
"""

import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

SERVICE = """
import sys, time
sys.stdout.write("loading the model")
sys.stdout.flush()
time.sleep(600)
"""


def start_service():
    service = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True)
    for line in service.stdout:
        if line.strip() == "ready":
            return service
    raise RuntimeError("the service ended")


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    if dist.get_rank() == 0:
        start_service()
    dist.broadcast(torch.zeros(4), src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
