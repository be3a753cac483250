"""Trainings by DistributedDataParallel on models of nn; each function is one rank's part."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torsh_runtime as tr
from torsh_runtime import nn, optim

BATCH = 4
State = dict[str, NDArray[Any]]


class Net(nn.Module):
    """Layers of which one is shared, one is not used and one is checkpointed."""

    def __init__(self, skips: bool) -> None:
        super().__init__()
        self.first, self.tied = nn.Linear(6, 10), nn.Linear(10, 10, bias=False)
        self.spare, self.last = nn.Linear(10, 10), nn.Linear(10, 3)
        self.register_buffer("mean", np.zeros(3, np.float32))
        self.skips = skips

    def forward(self, inputs: Any) -> dict[str, Any]:
        """(batch, 6) to (batch, 3)."""
        hidden = self.tied(self.first(inputs).relu()).tanh()
        if not self.skips:
            hidden = hidden + nn.checkpoint(self.spare, hidden)
        return {"out": self.last(self.tied(hidden))}


COURSES: dict[str, tuple[dict[str, Any], bool, int]] = {
    "plain": ({}, False, 1),
    "overlapping": ({"overlap_communication": True, "bucket_size_mb": 2e-4}, False, 1),
    "no views": ({"gradient_as_bucket_view": False}, False, 1),
    "unused": ({"find_unused_parameters": True}, True, 1),
    "static": ({"static_graph": True}, True, 1),
    "accumulating": ({"gradient_accumulation_steps": 2}, False, 2),
    "reduced in float64": ({"reduce_dtype": "float64"}, False, 1),
}
"""Options, whether a layer is left out, and backward passes in a step."""


def train(model: Any, passes: int, share: slice, ranks: int, spread: bool = False) -> State:
    """The state after 60 steps on these rows of each batch."""
    given = list(model.parameters())
    optimizer: Any = optim.AdamW(given, lr=0.01)
    if spread:
        optimizer = tr.DistributedOptimizer(given, optim.AdamW, lr=0.01)
    rows = np.random.default_rng(1)
    for _ in range(60):
        optimizer.zero_grad()
        for _ in range(passes):
            inputs = rows.standard_normal((BATCH * ranks, 6)).astype(np.float32)[share]
            (model(nn.Tensor(inputs))["out"] ** 2).mean().backward(np.float32(1 / passes))
        optimizer.step()
    return {name: np.array(value) for name, value in model.state_dict().items()}


def alone(name: str, ranks: int) -> State:
    """One process with all the rows."""
    nn.manual_seed(0)
    _, skips, passes = COURSES[name]
    return train(Net(skips), passes, slice(None), ranks)


def together(name: str, rank: int, ranks: int, spread: bool = False) -> State:
    """This rank's part; rank 0's first values count."""
    nn.manual_seed(rank)
    options, skips, passes = COURSES[name]
    model = tr.DistributedDataParallel(Net(skips), **options)
    assert isinstance(model, nn.Module)
    state = train(model, passes, slice(rank * BATCH, (rank + 1) * BATCH), ranks, spread)
    return {name.removeprefix("module."): value for name, value in state.items()}


def unused(rank: int, ranks: int) -> str:
    """What is said of a layer that is left out."""
    model = tr.DistributedDataParallel(Net(rank == 1))
    try:
        model(nn.Tensor(np.ones((1, 6), np.float32)))["out"].sum().backward()
    except tr.GradientError as error:
        return str(error)
    return "nothing"


def copied(rank: int, ranks: int) -> list[Any]:
    """The first layer's gradients by a wrapper, and by a pickle and a copy of it when it has been
    used; then a copy of the model, which rank 0 alone trains."""
    nn.manual_seed(0)
    model = tr.DistributedDataParallel(Net(False))
    inputs = nn.Tensor(np.full((1, 6), 1.0 + rank, np.float32))

    def gradient(model: Any) -> Any:
        model.zero_grad()
        model(inputs)["out"].sum().backward()
        return next(model.parameters()).grad.tolist()

    found = [gradient(model)]
    found += [gradient(pickle.loads(pickle.dumps(model))), gradient(copy.deepcopy(model))]  # noqa: S301
    if rank == 0:
        copy.deepcopy(model.module)(inputs)["out"].sum().backward()
    return found


def compressed(rank: int, ranks: int, name: str) -> tuple[float, bool]:
    """The loss after training to that before, and whether all ranks have the same bits."""
    nn.manual_seed(0)
    model = tr.DistributedDataParallel(Net(False), gradient_compression=name)
    inputs = nn.Tensor(np.random.default_rng(3).standard_normal((64, 6)).astype(np.float32))
    before = (model(inputs)["out"] ** 2).mean().item()
    state = train(model, 1, slice(rank * BATCH, (rank + 1) * BATCH), ranks)
    sums = [None] * ranks
    tr.all_gather_object(sums, [value.tobytes() for value in state.values()])
    after = (model(inputs)["out"] ** 2).mean().item()
    return after / before, all(each == sums[0] for each in sums)
