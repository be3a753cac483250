"""Rank 0 removes the old checkpoint while rank 1 has still to read its part of it.

nproc: 3
culprit: 0 | 1
kind: file | exception
hint: FileNotFoundError|no such file
needs: torch
seconds: 40
"""

import shutil
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def save(step: int) -> None:
    folder = Path(f"ckpt/step{step}")
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"moments": torch.zeros(16)}, folder / f"optim_{dist.get_rank()}.pt")


def rotate(keep: int) -> None:
    """Leaves the newest ones."""
    if dist.get_rank() == 0:
        time.sleep(0.7)  # lists a large directory
        found = sorted(Path("ckpt").iterdir())
        for old in found[:-keep]:
            print(f"Deleting older checkpoint [{old}] due to args.save_total_limit", flush=True)
            shutil.rmtree(old)


def rollback(step: int) -> dict:
    if dist.get_rank() == 1:
        time.sleep(1.5)  # its file comes from a busy server
    return torch.load(f"ckpt/step{step}/optim_{dist.get_rank()}.pt")


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    save(1)
    save(2)
    dist.barrier()
    state = rollback(1)  # the loss had a spike in step 2
    rotate(keep=1)
    dist.all_reduce(state["moments"])


main()
