"""Rank 0 resumes from `latest`, a link to a checkpoint that was removed to save space.

nproc: 2
culprit: 0
kind: file
hint: link|No such file|not exist|missing|ENOENT
needs: torch
seconds: 60
"""

import os
import pathlib
from datetime import timedelta

import torch
import torch.distributed as dist


def earlier_run(folder, keep=2):
    folder.mkdir()
    for step in range(100, 600, 100):
        torch.save(torch.full((8,), float(step)), folder / f"step-{step}.pt")
        if step == 300:  # the best one so far
            os.symlink(f"step-{step}.pt", folder / "latest")
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        old.unlink()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    weights = torch.zeros(8)
    if dist.get_rank() == 0:
        folder = pathlib.Path("checkpoints")
        earlier_run(folder)
        if "latest" in os.listdir(folder):
            weights = torch.load(folder / "latest")
    dist.broadcast(weights, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
