"""Scaled losses of models that are spread, beside one process's; each function one rank's part."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.experts import single
from support.mistakes import Bench
from support.planted import (
    CLASSES,
    DDP,
    FSDP,
    LENGTH,
    PLAN,
    ROWS,
    gpt,
    loss,
    piped,
    sharded,
    wrapped,
)
from support.planted_stages import sparse_gpt, with_experts
from support.tensor_parallel import Kit, kit

import torsh_runtime as tr
from torsh_runtime import optim
from torsh_runtime.framework.models import trained_parameters
from torsh_runtime.parallel.pipeline import PipelineParallel
from torsh_runtime.parallel.verification.placing import Place, share_of
from torsh_runtime.parallel.verification.recording import Spread, array_of, taken

STEPS, SCALE = 5, 1024.0
BROKEN = 2
"""The step in which one element of one gradient is infinite."""
LAYERS = {name: each for name, each in PLAN.items() if name != "exit.head"}


def _as_replicas(bench: Bench) -> Any:
    return wrapped(bench, DDP, "dp")(bench.model)


def _in_parts(bench: Bench) -> Any:
    tr.parallelize(bench.model, bench.mesh["tp"], LAYERS)
    return wrapped(bench, DDP, "dp")(bench.model)


@dataclass(frozen=True)
class Case:
    """How a model is spread, and whose gradient's last element is infinite once."""

    sizes: dict[str, int]
    spread: Callable[[Bench], Any]
    name: str
    build: Callable[[Kit], Any] = gpt
    over: tuple[str, ...] = ()


CASES = {
    "replicas": Case(
        {"dp": 4}, lambda bench: wrapped(bench, DDP, "dp")(bench.model), "exit.head.weight"
    ),
    "parts": Case({"dp": 2, "tp": 2}, _in_parts, "blocks.1.up.weight"),
    "shards": Case({"dp": 4}, sharded(), "exit.head.weight"),
    "stages and parts": Case({"pp": 2, "tp": 2}, piped(plan=PLAN), "blocks.2.up.weight"),
    "stages and replicas": Case({"pp": 2, "dp": 2}, piped(wrapper=DDP), "enter.tokens.weight"),
    "stages and shards": Case({"pp": 2, "dp": 2}, piped(wrapper=FSDP), "blocks.0.q.weight"),
    "zero bubble": Case(
        {"pp": 4},
        piped(schedule="zb-h1", cuts=["blocks.0", "blocks.2", "exit"]),
        "exit.head.weight",
    ),
    "experts in stages": Case(
        {"pp": 2, "dp": 2},
        with_experts(piped(wrapper=DDP, microbatches=1)),
        "blocks.0.experts.down",
        sparse_gpt,
        ("dp",),
    ),
}
BARE = ("replicas", "parts", "shards")
"""Where torch's scaler can be used at all."""


class Run:
    """A training of one model, whose losses are scaled."""

    def __init__(self, tools: Kit, model: Any, scaler: Any) -> None:
        kind: Any = tools.torch.optim.SGD if tools.is_torch else optim.SGD
        self._tools, self.scaler = tools, scaler
        self.optimizer = kind([each for _, each in trained_parameters(model)], lr=0.1, momentum=0.9)

    def step(self, back: Callable[[], object], parameter: Any, where: Any) -> float:
        """What the loss was multiplied with. where: a mask of elements of the parameter's gradient
        that are infinite; None: it stays as it is."""
        self.optimizer.zero_grad()
        scale = float(self.scaler.get_scale())
        back()
        if where is not None:
            values = self._tools.tensor(where * 1.0).data
            parameter.grad.data[...] = parameter.grad.data / (1.0 - values)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return scale


def trained(name: str, framework: str, bare: bool, rank: int) -> Any:
    """By how much parameters differ in the end from one process's, and the scales of all steps, of
    the spread model and of one process. bare: with torch's own scaler."""
    case, tools = CASES[name], kit(framework)
    mesh: Any = tr.init_device_mesh(case.sizes)
    mesh = mesh.view({"edp": -1, "ep": 2}, over=case.over) if case.over else mesh
    model = case.build(tools)
    made = case.spread(Bench(framework, copy.deepcopy(model), mesh))
    spread, options = Spread(made, mesh), {"init_scale": SCALE, "growth_interval": 2}
    one = Run(tools, model, tr.ShardedGradScaler(process_group=single(), **options))
    scaler: Any = tr.ShardedGradScaler(process_group=mesh, **options)
    scaler = tools.torch.amp.GradScaler("cpu", **options) if bare else scaler
    own, whole, scales = Run(tools, spread.module, scaler), dict(model.named_parameters()), []
    mask = np.zeros(whole[case.name].shape, bool)
    mask.reshape(-1)[-1] = True
    part = spread.parameters.get(case.name)
    for number, (batch, target) in enumerate(batches(tools)):
        share = share_of(batch, Place(mesh, ("dp",), "cp", None))
        back = back_of(tools, made, scaler, tuple(map(share.of, batch)), share.of(target))
        own_mask = None if part is None else taken(mask, spread.pieces()[case.name], part.shape)
        own_scale = own.step(back, part, own_mask if number == BROKEN else None)
        back = back_of(tools, model, one.scaler, batch, target)
        whole_scale = one.step(back, whole[case.name], mask if number == BROKEN else None)
        scales.append((own_scale, whole_scale))
    apart = 0.0
    for at, piece in spread.pieces().items():
        held = array_of(spread.parameters[at])
        wanted = taken(array_of(whole[at]), piece, held.shape)
        apart = max(apart, float(np.abs(held - wanted).max(initial=0.0)))
    return apart, scales


def batches(tools: Kit) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets of all steps."""
    random = np.random.default_rng(3)
    positions = np.tile(np.arange(LENGTH), (ROWS, 1))
    for _ in range(STEPS):
        indices, targets = random.integers(CLASSES, size=(2, ROWS, LENGTH))
        yield (tools.tensor(indices), tools.tensor(positions)), tools.tensor(targets)


def back_of(tools: Kit, model: Any, scaler: Any, batch: Any, target: Any) -> Callable[[], object]:
    """A backward pass of a scaled loss."""
    if isinstance(model, PipelineParallel):
        return lambda: model.step(batch, target, scaler=scaler)
    return lambda: scaler.scale(loss(tools)(model(*batch), target)).backward()


def unfit(rank: int) -> list[str]:
    """What is said of scalers by which ranks would not step alike."""
    tools, mesh = kit("torch"), tr.init_device_mesh({"pp": 2, "dp": 2})
    made = piped(wrapper=DDP)(Bench("torch", gpt(tools), mesh))
    ((batch, target), *_) = batches(tools)
    share = share_of(batch, Place(mesh, ("dp",), "cp", None))
    rows = tuple(map(share.of, batch)), share.of(target)
    parameter = tools.nn.Parameter(tools.torch.ones(2))
    optimizer = tools.torch.optim.SGD([parameter], lr=1.0)
    other = tr.ShardedGradScaler(init_scale=2.0 ** (1 + mesh.coordinate["pp"]))
    replica = mesh.coordinate["dp"]
    calls: list[Callable[[], object]] = [
        lambda: made.step(*rows, scaler=tools.torch.amp.GradScaler("cpu")),
        lambda: made.step(*rows, scaler=tr.ShardedGradScaler(process_group=mesh["dp"])),
        lambda: made.step(*rows, scaler=other),
        lambda: other.unscale_(optimizer),
        lambda: made.step(*rows, scaler=tools.torch.amp.GradScaler("cpu") if replica else None),
        lambda: made.step(*rows, scaler=tr.ShardedGradScaler() if replica else None),
    ]
    said = []
    for call in calls:
        try:
            said.append(str(call()))
        except tr.ConfigError as error:
            said.append(str(error))
    return said


def without_first(rank: int) -> list[float]:
    """What a step leaves of a parameter if the first group has none on any rank but 0, as if a
    stage had no biases."""
    torch = kit("torch").torch
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    for each in (first, second):
        each.grad = torch.full((2,), 4.0)
    groups = [{"params": [first] if rank == 0 else []}, {"params": [second]}]
    scaler = tr.ShardedGradScaler(init_scale=8.0)
    scaler.step(torch.optim.SGD(groups, lr=1.0))
    scaler.update()
    left: list[float] = second.tolist()
    return left
