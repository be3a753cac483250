"""What eight ranks of a mesh of stages, data and parts of layers do when one of them fails; each
function one rank's part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn

RANKS, WIDTH, MICROBATCHES = 8, 4, 4
SIZES = {"pp": 2, "dp": 2, "tp": 2}


class Stage(nn.Module):
    """Layers whose features are cut; `before` is called ahead of each forward pass."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 8, dtype=np.float64)
        self.down = nn.Linear(8, WIDTH, dtype=np.float64)
        self.before, self.calls = before, 0

    def forward(self, x: Any) -> Any:
        self.before(self.calls)
        self.calls += 1
        return x + self.down(nn.functional.gelu(self.up(x)))


def step(before: Callable[[int], None]) -> None:
    """A step of training on the mesh."""
    mesh = tr.init_device_mesh(SIZES)
    nn.manual_seed(0)
    model = nn.Sequential(Stage(before), Stage(before))
    tr.parallelize(model, mesh["tp"], {"*.up": tr.Column(), "*.down": tr.Row()})
    data = mesh.get_group("dp")
    pipeline = tr.PipelineParallel(
        model,
        MICROBATCHES,
        mesh=mesh,
        cuts=["1"],
        loss_fn=nn.functional.mse_loss,
        wrap=lambda stage: tr.DistributedDataParallel(stage, process_group=data),
    )
    x = nn.Tensor(np.ones((2 * MICROBATCHES, WIDTH)))
    pipeline.step(x, x)


def raising(rank: int, culprit: int) -> tuple[str, float]:
    """The PipelineError that a rank's step ends with, and after how many seconds."""

    def before(call: int) -> None:
        if rank == culprit and call == 2:
            raise ArithmeticError("no more")

    begun = time.monotonic()
    try:
        step(before)
    except tr.PipelineError as error:
        return str(error), time.monotonic() - begun
    return "", 0.0


def sleeping(rank: int, culprit: int, seconds: float) -> str:
    """What a rank's step ends with, of which one sleeps for so long before the others' timeouts."""

    def before(call: int) -> None:
        if rank == culprit and call == 2:
            time.sleep(seconds)

    try:
        step(before)
    except tr.TorshError as error:
        return str(error)
    return ""


if __name__ == "__main__":  # under torshrun
    tr.init_process_group()
    sleeping(int(os.environ["RANK"]), int(os.environ["CULPRIT"]), 600.0)
