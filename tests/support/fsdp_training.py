"""Trainings by FullyShardedDataParallel on torch models, each function one rank's part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torsh_runtime as tr
from torsh_runtime.modules.torch import TorchModule

BATCH = 4
State = dict[str, torch.Tensor]


class Net(nn.Module):
    """Linear layers, of which two have one weight and one is frozen in part."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(6, 17)
        self.inner = nn.Sequential(nn.Linear(17, 17), nn.Tanh(), nn.Linear(17, 17))
        self.tied = nn.Linear(17, 17)
        self.last = nn.Linear(17, 3)
        self.tied.weight = self.inner[0].weight
        self.last.bias.requires_grad_(False)
        self.reentrant = reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs))
        if self.reentrant is None:
            hidden = self.inner(hidden)
        else:
            hidden = checkpoint(self.inner, hidden, use_reentrant=self.reentrant)
        return self.last(torch.tanh(self.tied(hidden)))


@dataclass(frozen=True)
class Course:
    """One way to train."""

    options: dict[str, Any] = field(default_factory=dict)
    net: dict[str, Any] = field(default_factory=dict)
    passes: int = 1
    by_no_sync: bool = False
    keeps_gradients: bool = False
    zeroes_late: bool = False
    """After the forward pass, not before it."""
    clips: float = 0.0


_SMALL = {"auto_wrap_policy": tr.SizeBasedAutoWrap(100), "min_num_params": 0}
COURSES = {
    "full": Course(_SMALL),
    "grad-and-optimizer": Course({**_SMALL, "sharding_strategy": "grad-and-optimizer"}),
    "none": Course({**_SMALL, "sharding_strategy": "none"}),
    "one unit": Course({"auto_wrap_policy": tr.NoAutoWrap()}),
    "by type": Course({**_SMALL, "auto_wrap_policy": tr.ModuleTypeBasedAutoWrap(("Linear",))}),
    "by function": Course(
        {**_SMALL, "auto_wrap_policy": tr.CustomAutoWrap(lambda m: isinstance(m, nn.Sequential))}
    ),
    "replicated in part": Course({**_SMALL, "min_num_params": 120}),
    "zeroed in place": Course(_SMALL, keeps_gradients=True),
    "zeroed late": Course(_SMALL, zeroes_late=True),
    "zeroed late and whole": Course(
        {**_SMALL, "sharding_strategy": "grad-and-optimizer"}, zeroes_late=True
    ),
    "zeroed late in place": Course(
        {"auto_wrap_policy": tr.NoAutoWrap()}, keeps_gradients=True, zeroes_late=True
    ),
    "accumulating": Course(_SMALL, passes=3),
    "no_sync": Course(_SMALL, passes=3, by_no_sync=True),
    "clipped": Course({**_SMALL, "min_num_params": 120}, clips=0.05),
    "checkpoint": Course(_SMALL, {"reentrant": False}),
    "reentrant checkpoint": Course(_SMALL, {"reentrant": True}),
    "prefetch post": Course({**_SMALL, "backward_prefetch": "post"}),
    "prefetch none": Course({**_SMALL, "backward_prefetch": "none"}),
    "no limit": Course({**_SMALL, "memory_config": tr.MemoryConfig(limit_all_gathers=False)}),
}
STEPS = 100


def train(model: nn.Module, course: Course, share: slice, ranks: int) -> State:
    """The state after training on these rows of each batch, with the losses on them."""
    torch.set_num_threads(1)  # ranks and their threads would wait for each other's processors
    losses = []
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        if not course.zeroes_late:
            optimizer.zero_grad(set_to_none=not course.keeps_gradients)
        for number in range(course.passes):
            inputs = torch.randn(BATCH * ranks, 6, generator=generator)[share]
            skip = course.by_no_sync and number < course.passes - 1 and hasattr(model, "no_sync")
            with model.no_sync() if skip else nullcontext():
                loss = model(inputs).square().mean() / course.passes
                if course.zeroes_late:
                    optimizer.zero_grad(set_to_none=not course.keeps_gradients)
                loss.backward()
        if course.clips:
            _clip(model, course.clips)
        losses.append(loss.detach())
        optimizer.step()
    with torch.no_grad():
        losses.append(model(torch.ones(2, 6)).sum())
    return {**model.state_dict(), "losses": torch.stack(losses)}


def _clip(model: Any, most: float) -> None:
    if hasattr(model, "clip_grad_norm_"):
        model.clip_grad_norm_(most)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), most)


def together(name: str, rank: int, ranks: int, gathers: bool = False) -> State:
    """Trained by this rank beside the others."""
    course = COURSES[name]
    torch.manual_seed(rank)  # rank 0's values are to be everyone's
    with _without_common_memory() if gathers else nullcontext():
        model: Any = tr.FullyShardedDataParallel(Net(**course.net), **course.options)
        return train(model, course, slice(BATCH * rank, BATCH * (rank + 1)), ranks)


def alone(name: str, ranks: int) -> State:
    """Trained by one process on whole batches."""
    torch.manual_seed(0)
    return train(Net(**COURSES[name].net), COURSES[name], slice(None), ranks)


@contextmanager
def _without_common_memory() -> Iterator[None]:
    """As between nodes: ranks gather what they need."""
    with patch.object(TorchModule, "common", lambda *_, **__: None):
        yield


def hybrid(rank: int) -> State:
    """Four ranks: sharded over two, which two others replicate."""
    torch.manual_seed(rank)
    mesh = tr.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    options = {**_SMALL, "sharding_strategy": "hybrid"}
    model: Any = tr.FullyShardedDataParallel(Net(), process_group=mesh, **options)
    assert 0.4 < model.local_sharding_ratio() < 0.6
    return train(model, COURSES["full"], slice(BATCH * rank, BATCH * (rank + 1)), 4)
