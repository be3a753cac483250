"""The disk is full when rank 0 calls torch.save, whose error does not say so.

culprit: 0
kind: disk
hint: disk|space, df|full|quota
needs: torch disk
seconds: 40
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    state = {"weight": torch.zeros(1 << 20)}
    for step in range(5):
        dist.all_reduce(state["weight"][:100])
        if os.environ["RANK"] == "0":
            torch.save(state, Path(os.environ["CORPUS_DISK"]) / f"step-{step}.pt")
        dist.barrier()


main()
