"""Rank 2 has an empty sentence: its attention is a softmax over nothing, and its loss is checked.

nproc: 3
culprit: 2
kind: nan | exception
hint: rank 2
needs: torch
seconds: 60
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


class LossDiverged(ArithmeticError):
    def __init__(self, step, value):
        super().__init__(f"step {step}: loss is {value}")


LENGTHS = {0: [4, 3, 2, 4], 1: [1, 4, 4, 2], 2: [3, 4, 0, 1]}


def attend(x, length):
    mask = torch.arange(len(x)) >= length
    scores = (x @ x.T).masked_fill(mask, float("-inf"))
    return scores.softmax(-1) @ x


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    torch.manual_seed(int(os.environ["RANK"]))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step, length in enumerate(LENGTHS[dist.get_rank()]):
        loss = model(attend(torch.randn(4, 4), length)).square().mean()
        if not torch.isfinite(loss):
            raise LossDiverged(step, loss.item())
        loss.backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
