"""Trainings by our DistributedDataParallel on torch models."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import torsh_runtime as tr

BATCH = 4
State = dict[str, torch.Tensor]
"""Of a model, and under "losses" those of all steps."""


class Net(nn.Module):
    """Layers, of which one is used in every second step only if `skips`, or in none if `spares`."""

    def __init__(self, skips: bool = False, spares: bool = False, reentrant: bool | None = None):
        super().__init__()
        self.embed = nn.Linear(6, 10)
        self.side = nn.Linear(10, 10)
        self.spare = nn.Linear(10, 10)
        self.tied = nn.Linear(10, 10, bias=False)
        self.last = nn.Linear(10, 3)
        self.last.bias.requires_grad_(False)
        self.skips, self.spares, self.reentrant = skips, spares, reentrant
        self.calls = 0

    def body(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.tied(hidden))
        if not self.spares:
            hidden = hidden + torch.tanh(self.spare(hidden))
        return self.tied(hidden)

    def forward(self, inputs: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        self.calls += 1
        hidden = torch.relu(self.embed(inputs))
        if not (self.skips and self.calls % 2):
            hidden = hidden + self.side(hidden)
        if self.reentrant is None:
            hidden = self.body(hidden)
        else:
            hidden = checkpoint(self.body, hidden, use_reentrant=self.reentrant)
        return {"out": [self.last(hidden)]}


@dataclass(frozen=True)
class Course:
    """One way to train."""

    options: dict[str, Any] = field(default_factory=dict)
    net: dict[str, Any] = field(default_factory=dict)
    passes: int = 1
    by_no_sync: bool = False
    keeps_gradients: bool = False
    """Zeroed in place, instead of none."""
    steps: int = 24
    compiled: str = ""
    autocast: bool = False


COURSES = {
    "plain": Course(),
    "overlapping": Course({"overlap_communication": True, "bucket_size_mb": 2e-4}),
    "inline": Course({"overlap_communication": False, "bucket_size_mb": 2e-4}),
    "many buckets": Course({"bucket_size_mb": 1e-6}),
    "no views": Course({"gradient_as_bucket_view": False}),
    "zeroed in place": Course({"bucket_size_mb": 2e-4}, keeps_gradients=True),
    "accumulating": Course({"gradient_accumulation_steps": 3}, passes=3),
    "no_sync": Course(passes=3, by_no_sync=True),
    "no_sync, zeroed in place": Course(passes=2, by_no_sync=True, keeps_gradients=True),
    "sometimes unused": Course({"find_unused_parameters": True}, {"skips": True}),
    "never used": Course({"find_unused_parameters": True}, {"spares": True}),
    "never used, static": Course({"static_graph": True}, {"spares": True}),
    "static": Course({"static_graph": True, "bucket_size_mb": 2e-4}),
    "checkpoint": Course({}, {"reentrant": False}),
    "reentrant checkpoint": Course({"bucket_size_mb": 2e-4}, {"reentrant": True}),
    "reduced in float64": Course({"reduce_dtype": "float64"}),
    "checked for NaN": Course({"check_nan": True}),
    "autocast": Course(steps=10, autocast=True),
    "reduced in bfloat16": Course({"reduce_dtype": "bfloat16"}, steps=10),
    "compiled inside": Course(compiled="inside"),
    "compiled outside": Course(compiled="outside"),
}


def train(model: nn.Module, course: Course, share: slice, ranks: int) -> State:
    """The state after training on these rows of each batch, with the losses on them."""
    losses = []
    optimizer = torch.optim.SGD(
        [each for each in model.parameters() if each.requires_grad], lr=0.05, momentum=0.9
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(course.steps):
        optimizer.zero_grad(set_to_none=not course.keeps_gradients)
        for number in range(course.passes):
            inputs = torch.randn(BATCH * ranks, 6, generator=generator)[share]
            last = number == course.passes - 1
            skip = course.by_no_sync and not last and hasattr(model, "no_sync")
            with model.no_sync() if skip else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=course.autocast):
                    outputs = model(inputs)["out"][0].float()
                loss = outputs.square().mean() / course.passes
                loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    state = {_plain(name): value.detach().clone() for name, value in model.state_dict().items()}
    return {**state, "losses": torch.stack(losses)}


def _plain(name: str) -> str:
    """Without what wrappers put before it."""
    return name.removeprefix("_orig_mod.").removeprefix("module.")


def alone(name: str, ranks: int) -> State:
    """One process with all the rows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return train(Net(**COURSES[name].net), COURSES[name], slice(None), ranks)


def together(name: str, rank: int, ranks: int) -> State:
    """This rank's part."""
    course = COURSES[name]
    net = _net(course, rank)
    if course.compiled == "inside":
        net.body = torch.compile(net.body, backend="aot_eager")
    model: Any = tr.DistributedDataParallel(net, **course.options)
    if course.compiled == "outside":
        model = torch.compile(model, backend="aot_eager")
    return train(model, course, _share(rank), ranks)


def by_torch(folder: str, rank: int, ranks: int) -> State:
    """The plain course by torch's own class on gloo, whose ranks meet in the folder."""
    store = dist.FileStore(f"{folder}/gloo-{ranks}", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    try:
        return _trained_by_torch(rank, ranks)
    finally:
        # A Reducer that outlives the group destroys it with the GIL held, which hangs where a
        # thread of gloo's waits for the GIL.
        gc.collect()
        dist.destroy_process_group()


def _trained_by_torch(rank: int, ranks: int) -> State:
    model = nn.parallel.DistributedDataParallel(_net(COURSES["plain"], rank))
    return train(model, COURSES["plain"], _share(rank), ranks)


def _net(course: Course, rank: int) -> Any:
    """Of which rank 0's values count."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    return Net(**course.net)


def _share(rank: int) -> slice:
    return slice(rank * BATCH, (rank + 1) * BATCH)


def wrapped(make: Callable[[], nn.Module], **options: Any) -> Any:
    """A model with the same values on all ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return tr.DistributedDataParallel(make(), **options)
