"""What eight ranks of a mesh of stages, data and parts of layers do when one of them fails; each
function one rank's part.
"""

from __future__ import annotations

import os
import signal
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


def step(before: Callable[[int], None], microbatches: int = MICROBATCHES) -> None:
    """A step of training on the mesh."""
    mesh = tr.init_device_mesh(SIZES)
    nn.manual_seed(0)
    model = nn.Sequential(Stage(before), Stage(before))
    tr.parallelize(model, mesh["tp"], {"*.up": tr.Column(), "*.down": tr.Row()})
    data = mesh.get_group("dp")
    pipeline = tr.PipelineParallel(
        model,
        microbatches,
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


def differing(rank: int) -> list[str]:
    """What ranks of two stages and two replicas are told that build different things, one after
    the other; rank 3 is the one that differs."""
    mesh = tr.init_device_mesh({"pp": 2, "dp": 2})
    differs = rank == 3

    def pipeline(microbatches: int = 2, schedule: str = "1f1b", width: int = WIDTH) -> Any:
        stages = [nn.Linear(width, width, dtype=np.float64) for _ in range(2)]
        tr.PipelineParallel(stages, microbatches, mesh=mesh, schedule=schedule)

    def experts(count: int) -> Any:
        tr.MixtureOfExperts(WIDTH, 8, count, mesh=mesh["dp"], data=mesh, framework="nn")

    attempts: list[Callable[[], Any]] = [
        lambda: tr.init_device_mesh({"pp": 4, "dp": 1} if differs else {"pp": 2, "dp": 2}),
        lambda: tr.init_device_mesh({"dp": 2, "pp": 2} if differs else {"pp": 2, "dp": 2}),
        lambda: pipeline(microbatches=4 if differs else 2),
        lambda: pipeline(schedule="gpipe" if differs else "1f1b"),
        lambda: pipeline(width=8 if differs else WIDTH),
        lambda: pipeline(microbatches=0 if differs else 2),
        lambda: experts(4 if differs else 2),
        lambda: tr.ColumnParallelLinear(WIDTH, 7 if differs else 8, mesh=mesh["dp"]),
    ]
    return [_refusal(attempt, mesh) for attempt in attempts]


def of_another_axis(rank: int) -> str:
    """What a rank is told if rank 3 asks for the group of another axis than the others."""
    mesh = tr.init_device_mesh({"pp": 2, "dp": 2})
    try:
        mesh.get_group("pp" if rank == 3 else "dp")
    except tr.CommTimeout as error:
        return str(error)
    time.sleep(3.0)  # there all the time that others wait
    return ""


def of_two_frameworks(rank: int) -> list[str]:
    """The same of models of torch and of torsh_runtime.nn."""
    import torch

    mesh = tr.init_device_mesh({"pp": 2, "tp": 2})
    framework = torch.nn if rank == 3 else nn
    model = framework.Sequential(framework.Linear(4, 4), framework.Linear(4, 4))
    plan = {"0": tr.Column(), "1": tr.Row()}
    return [
        _refusal(lambda: tr.PipelineParallel(model, 2, mesh=mesh, cuts=["1"]), mesh),
        _refusal(lambda: tr.parallelize(model, mesh["tp"], plan), mesh),
    ]


def _refusal(attempt: Callable[[], Any], mesh: tr.DeviceMesh) -> str:
    said = ""
    try:
        attempt()
    except tr.ConfigError as error:
        said = str(error)
    mesh.group.barrier()
    return said


def ending(rank: int, culprit: int, end: Callable[[], object]) -> None:
    """One ends in the middle of a step."""

    def before(call: int) -> None:
        if rank == culprit and call == 2:
            end()

    step(before)


def main() -> None:
    """Under torshrun."""
    tr.init_process_group()
    rank, culprit = int(os.environ["RANK"]), int(os.environ["CULPRIT"])
    match os.environ.get("FAULT", "sleeps"):
        case "exits":
            ending(rank, culprit, lambda: os._exit(3))
        case "killed":
            ending(rank, culprit, lambda: os.kill(os.getpid(), signal.SIGKILL))
        case "differs":
            step(lambda call: None, MICROBATCHES + (rank == culprit))
        case _:
            sleeping(rank, culprit, 600.0)


if __name__ == "__main__":
    main()
