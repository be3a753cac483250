"""Rank 2's predictions are shorter, since nobody pads them before they are gathered.

Accelerate's debug mode is on, and compares shapes before each operation: all ranks get its error.

nproc: 3
culprit: 2
kind: mismatch | exception
hint: rank 2|process 2|shape|gather
needs: torch
seconds: 90
"""

import os

os.environ["ACCELERATE_DEBUG_MODE"] = "1"

import torch
from accelerate import Accelerator


def generate(rank: int) -> torch.Tensor:
    longest = [9, 9, 5][rank]
    return torch.full((2, longest), rank)


def main() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    predictions = generate(accelerator.process_index)
    everybody = accelerator.gather(predictions)
    accelerator.print(everybody.shape)


main()
