"""Rank 0 shows its progress with block characters, and its output takes ASCII only.

nproc: 2
culprit: 0
kind: encoding | exception
hint: encod|UTF-8|ASCII|locale
needs: torch
seconds: 60
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def batch_system():
    """Its environment has PYTHONIOENCODING=ascii for whoever writes to its log."""
    if os.environ["RANK"] == "0":
        sys.stdout.reconfigure(encoding="ascii")


def bar(done, total, width=20):
    full = width * done // total
    print(f"epoch 1 {'█' * full}{'·' * (width - full)} {done}/{total}", flush=True)


def main():
    batch_system()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    weights = torch.zeros(100)
    for step in range(10):
        grad = torch.randn(100)
        dist.all_reduce(grad)
        weights -= grad
        if dist.get_rank() == 0:
            bar(step + 1, 10)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
