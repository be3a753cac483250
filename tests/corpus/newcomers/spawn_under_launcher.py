"""The script starts its own ranks, as without a launcher: now each worker does that, at one port.

nproc: 2
culprit: 0 | 1
kind: port
hint: port, in use|EADDRINUSE|taken|holds|listen
needs: torch
seconds: 90
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def train(rank, port):
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=30),
    )
    for _ in range(100):
        time.sleep(0.1)
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    mp.spawn(train, args=(21000 + os.getppid() % 8000,), nprocs=RANKS)
