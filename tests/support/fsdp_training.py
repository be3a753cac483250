"""Trainings by FullyShardedDataParallel on torch models, each function one rank's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from support.ddp_faults import raised
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import torsh_runtime as tr
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import torch_offload
from torsh_runtime.framework.torch import TorchFramework
from torsh_runtime.parallel.fsdp import fsdp_init

BATCH = 4
State = dict[str, torch.Tensor]


class Net(nn.Module):
    """Linear layers, of which two have one weight and one is frozen in part, and a scale that has
    no dimensions."""

    def __init__(self, reentrant: bool | None = None, ties: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(6, 17)
        self.inner = nn.Sequential(nn.Linear(17, 17), nn.Tanh(), nn.Linear(17, 17))
        self.tied = nn.Linear(17, 17)
        self.last = nn.Linear(17, 3)
        if ties:
            self.tied.weight = self.inner[0].weight
        self.last.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.25))
        self.reentrant = reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs))
        if self.reentrant is None:
            hidden = self.inner(hidden)
        else:
            hidden = checkpoint(self.inner, hidden, use_reentrant=self.reentrant)
        return self.last(self.scale * torch.tanh(self.tied(hidden)))


@dataclass(frozen=True)
class Course:
    """One way to train."""

    options: dict[str, Any] = field(default_factory=dict)
    net: dict[str, Any] = field(default_factory=dict)
    passes: int = 1
    by_no_sync: bool = False
    held_passes: int = 0
    """So many of the first ones go between unshard() and reshard(); all: up to the reduction."""
    keeps_gradients: bool = False
    zeroes_late: bool = False
    """After the forward pass, not before it."""
    clips: float = 0.0
    optimizer: dict[str, Any] = field(default_factory=dict)
    has_autocast: bool = False
    compiles: str = ""
    """What torch.compile takes: units, in one of two ways, or the whole."""
    is_nested: bool = False
    """Parts are wrapped by hand before the whole is."""


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
    "held": Course({**_SMALL, "min_num_params": 120}, passes=3, held_passes=3),
    "held for two of three": Course(_SMALL, passes=3, held_passes=2),
    "held, and reduced later": Course(_SMALL, passes=3, held_passes=2, by_no_sync=True),
    "clipped": Course({**_SMALL, "min_num_params": 120}, clips=0.05),
    "checkpoint": Course(_SMALL, {"reentrant": False}),
    "reentrant checkpoint": Course(_SMALL, {"reentrant": True}),
    "prefetch post": Course({**_SMALL, "backward_prefetch": "post"}),
    "prefetch none": Course({**_SMALL, "backward_prefetch": "none"}),
    "no limit": Course({**_SMALL, "memory_config": tr.MemoryConfig(limit_all_gathers=False)}),
    "fused": Course(_SMALL, optimizer={"fused": True}),
    "foreach": Course(_SMALL, optimizer={"foreach": True}),
    "autocast": Course(_SMALL, has_autocast=True),
    "checkpointing": Course({**_SMALL, "activation_checkpointing": True}),
    "checkpointing the only unit": Course(
        {"auto_wrap_policy": tr.NoAutoWrap(), "activation_checkpointing": True}
    ),
    "checkpointing blocks": Course(
        {
            **_SMALL,
            "activation_checkpointing": True,
            "auto_wrap_policy": tr.ModuleTypeBasedAutoWrap(("Sequential",)),
            "sharding_strategy": "grad-and-optimizer",
        }
    ),
    "nested": Course(_SMALL, {"ties": False}, is_nested=True),
    "compiled wrappers": Course(_SMALL, compiles="units"),
    "compiled in place": Course(_SMALL, compiles="in place"),
    "compiled whole": Course(_SMALL, compiles="whole"),
    "compiled whole units": Course(
        {**_SMALL, "sharding_strategy": "grad-and-optimizer"}, compiles="whole"
    ),
}
STEPS, COMPILED_STEPS = 16, 10


def train(model: nn.Module, course: Course, share: slice, ranks: int) -> State:
    """The state after training on these rows of each batch, with the losses on them."""
    torch.set_num_threads(1)  # ranks and their threads would wait for each other's processors
    losses = []
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, **course.optimizer)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=course.has_autocast)
    generator = torch.Generator().manual_seed(1)
    for _ in range(COMPILED_STEPS if course.compiles else STEPS):
        if not course.zeroes_late:
            optimizer.zero_grad(set_to_none=not course.keeps_gradients)
        held = course.held_passes if hasattr(model, "unshard") else 0
        if held:
            model.unshard()
        for number in range(course.passes):
            inputs = torch.randn(BATCH * ranks, 6, generator=generator)[share]
            skip = course.by_no_sync and (held or number < course.passes - 1)
            with model.no_sync() if skip and hasattr(model, "no_sync") else nullcontext():
                with autocast:
                    loss = model(inputs).square().mean() / course.passes
                if course.zeroes_late:
                    optimizer.zero_grad(set_to_none=not course.keeps_gradients)
                loss.backward()
            if held == number + 1 < course.passes:
                model.reshard()
        if held:
            model.reduce_gradients()
        if course.clips:
            _clip(model, course.clips)
        losses.append(loss.detach())
        optimizer.step()
    with torch.no_grad():
        losses.append(model(torch.ones(2, 6)).sum())
    state = {name.replace("_orig_mod.", ""): each for name, each in model.state_dict().items()}
    return {**state, "losses": torch.stack(losses)}


def _clip(model: Any, most: float) -> None:
    if hasattr(model, "clip_grad_norm_"):
        model.clip_grad_norm_(most)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), most)


WAYS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "common": nullcontext,
    "gathered": lambda: without_common_memory(),
    "device": lambda: as_on_gpus(),
    "offloaded": lambda: offloaded(),
}
"""Of storing flat parameters."""


def together(name: str, rank: int, ranks: int, way: str = "common") -> State:
    """Trained by this rank beside the others."""
    course = COURSES[name]
    torch.manual_seed(rank)  # rank 0's values are to be everyone's
    torch.compiler.reset()
    counters["stats"].clear()
    with WAYS[way]():
        net: Any = _prepared(Net(**course.net), course)
        model: Any = tr.FullyShardedDataParallel(net, **course.options)
        if course.compiles == "whole":
            model = torch.compile(model, backend="aot_eager")
        state = train(model, course, slice(BATCH * rank, BATCH * (rank + 1)), ranks)
    if course.compiles:  # not anew in each step
        assert 4 <= counters["stats"]["unique_graphs"] <= 8
    return state


def _prepared(net: Any, course: Course) -> Any:
    if course.is_nested:
        net.inner[2] = tr.FullyShardedDataParallel(net.inner[2], **course.options)
        net.inner = tr.FullyShardedDataParallel(net.inner, **course.options)
    for name in ("first", "inner"):
        if course.compiles == "units":
            setattr(net, name, torch.compile(getattr(net, name), backend="aot_eager"))
        elif course.compiles == "in place":
            getattr(net, name).compile(backend="aot_eager")
    return net


class Hiding(nn.Module):
    """Gives what a part gives, within an object that nobody looks into."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(value=self.part(getattr(inputs, "value", inputs)))


def with_hidden_outputs(rank: int) -> tuple[list[torch.Tensor], str]:
    """Of replicated units the parameters without and with outputs in such objects; of sharded ones
    the error."""
    inputs = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))[rank]
    options: Any = {"auto_wrap_policy": tr.ModuleTypeBasedAutoWrap((Hiding,))}
    found = []
    for hides in (nn.Sequential, Hiding):
        torch.manual_seed(0)
        net = nn.Sequential(*(hides(nn.Linear(8, 8)) for _ in range(3)))
        model: Any = tr.FullyShardedDataParallel(net, min_num_params=100, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            outputs = model(inputs)
            getattr(outputs, "value", outputs).square().mean().backward()
            optimizer.step()
        found.append(torch.cat([each.flatten() for each in model.state_dict().values()]))
    hidden: Any = tr.FullyShardedDataParallel(Hiding(nn.Linear(8, 8)), min_num_params=0, **options)
    try:
        hidden(inputs)
    except ConfigError as error:
        return found, str(error)
    return found, ""


def data_parallel(rank: int, ranks: int) -> State:
    """By DistributedDataParallel, of which every strategy is another form."""
    torch.manual_seed(rank)
    model: Any = tr.DistributedDataParallel(Net())
    state = train(model, COURSES["full"], slice(BATCH * rank, BATCH * (rank + 1)), ranks)
    return {name.removeprefix("module."): each for name, each in state.items()}


def alone(name: str, ranks: int) -> State:
    """Trained by one process on whole batches."""
    torch.manual_seed(0)
    return train(Net(**COURSES[name].net), COURSES[name], slice(None), ranks)


@contextmanager
def without_common_memory(gathers: bool = True) -> Iterator[None]:
    """As between nodes, if gathers: ranks gather what they need."""
    if not gathers:
        yield
        return
    with patch.object(ProcessGroup, "common_memory", lambda *_: None):
        yield


def as_on_gpus() -> AbstractContextManager[object]:
    """Flat parameters are stored as those on GPUs are."""
    return patch.object(fsdp_init, "has_host_memory", lambda _: False)


class Device:
    """Copies to the memory of the CPU that are done only when they are waited for."""

    def __init__(self) -> None:
        self._pinned: list[torch.Tensor] = []  # which stays, as its addresses are looked at
        self._later: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pinned(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        made = torch.full((size,), float("nan"), dtype=dtype)
        self._pinned.append(made)
        return made

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if target.data_ptr() in [each.data_ptr() for each in self._pinned]:
            self._later.append((target, source))
        else:
            target.copy_(source)

    def moment(self, like: torch.Tensor) -> Callable[[], None]:
        before = [*self._later]

        def wait() -> None:
            for each in before:
                if any(each is other for other in self._later):
                    each[0].copy_(each[1])
            self._later = [each for each in self._later if not any(each is b for b in before)]

        return wait


@contextmanager
def offloaded() -> Iterator[None]:
    """What a rank has is stored as that of a model on a GPU is with cpu_offload."""
    device = Device()
    with (
        as_on_gpus(),
        patch.object(tr.FsdpConfig, "offloads", True),
        patch.object(torch_offload, "pinned", device.pinned),
        patch.object(TorchFramework, "copy_without_waiting", staticmethod(device.copy)),
        patch.object(TorchFramework, "moment", staticmethod(device.moment)),
    ):
        yield


def hybrid(rank: int, way: str = "common") -> State:
    """Four ranks: sharded over two, which two others replicate."""
    torch.manual_seed(rank)
    mesh = tr.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    with WAYS[way]():
        return _by(rank, 4, "hybrid", mesh)


def between_nodes(strategy: str, rank: int, ranks: int) -> State:
    """Of some ranks on each node; replicas of shards are made of the default group."""
    torch.manual_seed(rank)
    return _by(rank, ranks, strategy, None)


def hybrid_clipped(rank: int) -> str:
    """What torch's clip_grad_norm_ raises where other ranks have other parts of the gradients."""
    mesh = tr.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model: Any = tr.FullyShardedDataParallel(
        torch.nn.Linear(4, 4), process_group=mesh["shard"], min_num_params=0
    )
    model(torch.ones(1, 4)).sum().backward()
    return raised(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def in_place(rank: int, ranks: int) -> State:
    """By fully_shard(), of a few parts on their own."""
    torch.manual_seed(rank)
    net = Net()
    for each in (net.first, net.last, net):
        tr.fully_shard(each)
    return train(net, COURSES["full"], slice(BATCH * rank, BATCH * (rank + 1)), ranks)


def _by(rank: int, ranks: int, strategy: str, groups: Any) -> State:
    options = {**_SMALL, "sharding_strategy": strategy}
    model: Any = tr.FullyShardedDataParallel(Net(), process_group=groups, **options)
    if strategy == "hybrid":
        assert 0.4 < model.local_sharding_ratio() < 0.6
    return train(model, COURSES["full"], slice(BATCH * rank, BATCH * (rank + 1)), ranks)
