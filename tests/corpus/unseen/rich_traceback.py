"""Rank 1's traceback is drawn in boxes, with the values of its variables.

nproc: 3
culprit: 1
kind: exception
hint: AssertionError|negative
needs: torch
seconds: 40
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import track
from rich.traceback import install

install(show_locals=True, width=100, console=Console(stderr=True, width=100))


@dataclass
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def area(self) -> float:
        width, height = self.right - self.left, self.bottom - self.top
        assert width >= 0, f"box of negative width: {self}"
        assert height >= 0, f"box of negative height: {self}"
        return width * height


def boxes(rank: int) -> list[Box]:
    found = [Box(i, i, i + 2, i + 3) for i in range(40)]
    if rank == 1:
        found[21] = Box(5, 5, 4, 9)
    return found


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    for box in track(boxes(dist.get_rank()), disable=dist.get_rank() != 0):
        area = torch.tensor(box.area())
        dist.all_reduce(area)


main()
