"""Rank 0 loads a checkpoint that holds a class of the user's own, which torch refuses since 2.6.

nproc: 2
culprit: 0
kind: exception | version
hint: rank 0
needs: torch
seconds: 60
"""

import dataclasses
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclasses.dataclass
class TrainingArguments:
    learning_rate: float = 1e-3
    epochs: int = 3


def previous_run(path):
    torch.save({"step": 7, "weights": torch.ones(8), "args": TrainingArguments()}, path)


def resume(path):
    state = torch.load(path, map_location="cpu")
    return state["weights"]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    weights = torch.zeros(8)
    if dist.get_rank() == 0:
        previous_run("last.ckpt")
        weights = resume("last.ckpt")
    dist.broadcast(weights, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
