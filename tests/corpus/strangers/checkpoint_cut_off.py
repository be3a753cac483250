"""Rank 0 resumes from a checkpoint whose upload was cut off; the others wait for its weights.

nproc: 2
culprit: 0
kind: file | exception
hint: checkpoint|last.pt, zip|archive|corrupt|truncated|PytorchStreamReader|Invalid argument
needs: torch
seconds: 60
"""

import os

import torch
import torch.distributed as dist


def write_checkpoint(path):
    torch.save({"model": torch.nn.Linear(64, 64).state_dict(), "step": 100}, path)
    os.truncate(path, os.path.getsize(path) // 2)


def resume(model, path):
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])
    return state["step"]


def main():
    dist.init_process_group("gloo")
    model = torch.nn.Linear(64, 64)
    if dist.get_rank() == 0:
        write_checkpoint("last.pt")
        step = resume(model, "last.pt")
        print("resumed at", step)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    dist.destroy_process_group()


main()
