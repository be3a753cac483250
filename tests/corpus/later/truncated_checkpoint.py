"""The checkpoint to resume from is cut off: an earlier job ran out of time while it wrote it.

culprit: none
kind: file | exception
hint: OSError|RuntimeError|exit code 1|exitcode +: 1, all|every|each|both|2 ranks|ranks 0-1|in the same way
needs: torch
seconds: 120
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


def leave_half_a_checkpoint(path):
    torch.save(nn.Linear(100, 100).state_dict(), path)
    os.truncate(path, os.path.getsize(path) // 2)


def resume(model, path):
    if os.path.exists(path):
        print("resuming from", path)
        model.load_state_dict(torch.load(path, map_location="cpu"))


dist.init_process_group("gloo", timeout=timedelta(seconds=30))
if dist.get_rank() == 0:
    leave_half_a_checkpoint("last.ckpt")
dist.barrier()
model = nn.Linear(100, 100)
resume(model, "last.ckpt")
for p in model.parameters():
    dist.broadcast(p.data, 0)
