"""What users do, in pipelines and in one process; each function one rank's part."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.pipeline_training import (
    CUTS,
    MICROBATCHES,
    WIDTH,
    batch,
    nn_loss,
    nn_model,
    of,
    optimizer_of,
)

import torsh_runtime as tr
from torsh_runtime import nn

Pairs = dict[str, tuple[Any, Any]]


def _tools(kind: str) -> tuple[Any, Callable[[Any], Any]]:
    """The framework's nn, and what makes tensors."""
    return importlib.import_module("torch.nn") if kind == "torch" else nn, of(kind)[2]


def _layers(kind: str, make: Callable[[Any], Any]) -> Any:
    found, _ = _tools(kind)
    (importlib.import_module("torch") if kind == "torch" else nn).manual_seed(3)
    made = make(found)
    return made.double() if kind == "torch" else made.to("float64")


def _mse(output: Any, target: Any) -> Any:
    return ((output - target) * (output - target)).mean()


def _compared(pipeline: Any, model: Any, what: str) -> Pairs:
    """Gradients, and buffers, of this rank's and of the whole."""
    pairs: Pairs = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in pipeline.module.named_parameters():
        gradients = [each.grad for each in (parameter, parameters[name])]
        if gradients[0] is not None:
            pairs[f"{what} {name}"] = tuple(np.array(each.data) for each in gradients)
    buffers = dict(model.named_buffers())
    for name, buffer in pipeline.module.named_buffers():
        pairs[f"{what} {name}"] = np.array(buffer.data), np.array(buffers[name].data)
    return pairs


def _rows(kind: str, seed: int = 0) -> tuple[Any, Any]:
    random, (_, tensor) = np.random.default_rng(seed), _tools(kind)
    return tensor(random.normal(size=(8, WIDTH))), tensor(random.normal(size=(8, WIDTH)))


def accumulated(rank: int, kind: str) -> Pairs:
    """Several steps add up, also of a parameter that two stages have; then some are frozen. Of a
    list of modules, whose norm counts it once."""
    make, loss_fn, tensor = of(kind)
    model, cut = make(True), make(True)
    stages = [_tools(kind)[0].Sequential(cut.tokens), _Rest(kind, cut).made]
    pipeline = tr.PipelineParallel(stages, 4, loss_fn=loss_fn)
    for number in range(3):
        x, y = map(tensor, batch(number))
        pipeline.step(x, y)
        loss_fn(model(x), y).backward()
    norms = tr.clip_grad_norm_(pipeline.module, 1e9), tr.clip_grad_norm_(model, 1e9)
    pairs: Pairs = {"norm": norms}
    own = next(iter(pipeline.module.parameters()))
    pairs["tied"] = np.array(own.grad.data), np.array(model.tokens.weight.grad.data)
    whole = make()
    plain = tr.PipelineParallel(make(), 4, cuts=CUTS[2], loss_fn=loss_fn)
    plain.step(x, y)
    loss_fn(whole(x), y).backward()
    for module in (plain.module, whole):
        for name, parameter in module.named_parameters():
            parameter.requires_grad = not name.startswith(("tokens", "blocks.0"))
    plain.step(x, y)
    loss_fn(whole(x), y).backward()
    frozen = ("tokens", "blocks.0")
    found = _compared(plain, whole, "frozen").items()
    return pairs | {name: each for name, each in found if not name[7:].startswith(frozen)}


def wrapped(rank: int, kind: str, wrapper: str) -> Pairs:
    """A parameter that two stages have, whose gradients are accumulated in several steps, and of
    which wrappers over two replicas have parts that each stage cuts in its own way."""
    make, loss_fn, tensor = of(kind)
    mesh = tr.init_device_mesh({"pp": 2, "dp": 2})
    group = mesh.get_group("dp")
    options = {} if wrapper == "DistributedDataParallel" else {"min_num_params": 0}
    pipeline = tr.PipelineParallel(
        make(True),
        MICROBATCHES,
        mesh=mesh,
        cuts=CUTS[2],
        loss_fn=loss_fn,
        wrap=lambda stage: getattr(tr, wrapper)(stage, process_group=group, **options),
    )
    model, pairs = make(True), {}
    optimizers = [optimizer_of(kind, each) for each in (pipeline.module, model)]
    for number in range(4):
        x, y = batch(number)
        own = slice(12 * group.rank, 12 * group.rank + 12)
        loss = loss_fn(model(tensor(x)), tensor(y))
        loss.backward()
        pairs[f"loss {number}"] = pipeline.step(tensor(x[own]), tensor(y[own])), loss.item()
        if number % 2:
            norms = tr.clip_grad_norm_(pipeline.module, 0.5, mesh), tr.clip_grad_norm_(model, 0.5)
            pairs[f"norm {number}"] = norms
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return pairs


class _Often:
    """A layer whose weight several operations use, and not all of them can leave its gradient for
    later."""

    def __init__(self, kind: str) -> None:
        found, _ = _tools(kind)
        functional = found.functional

        class Often(found.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner = found.Linear(WIDTH, WIDTH)

            def forward(self, x: Any) -> Any:
                weight, bias = self.inner.weight, self.inner.bias
                x = functional.linear(functional.gelu(functional.linear(x, weight, bias)), weight)
                return x + (weight * weight).sum()

        self.made = Often()


def hooked(rank: int, kind: str, schedule: str, wrapper: str) -> Pairs:
    """What hooks of gradients see, each time that they are called, and the gradients."""

    def made() -> Any:
        def make(found: Any) -> Any:
            ends = found.LayerNorm(WIDTH), found.Linear(WIDTH, WIDTH, bias=False)
            middle = found.Linear(WIDTH, WIDTH), _Often(kind).made, found.Linear(WIDTH, WIDTH)
            return found.Sequential(found.Linear(WIDTH, WIDTH), *middle, *ends)

        return _layers(kind, make)

    def note(seen: dict[str, list[Any]], name: str, parameter: Any) -> None:
        seen.setdefault(name, []).append(np.array(parameter.grad.data))

    x, y = _rows(kind)
    whole, split = made(), made()
    whole_seen: dict[str, list[Any]] = {}
    seen: dict[str, list[Any]] = {}
    for model, noted in ((whole, whole_seen), (split, seen)):
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(note, noted, name))
        for name in ("1.bias", "3.bias", "5.weight"):
            dict(model.named_parameters())[name].register_hook(lambda gradient: gradient * 2.0)
    for start in range(0, 8, 2):
        (_mse(whole(x[start : start + 2]), y[start : start + 2]) * 0.25).backward()
    cuts = {"zbv": ["1", "2", "4"], "interleaved": ["1", "2", "4"]}.get(schedule, ["2"])
    mesh = tr.init_device_mesh({"pp": 2, "dp": 1})
    wrap = None if not wrapper else partial(getattr(tr, wrapper), process_group=mesh["dp"])
    options: dict[str, Any] = {"loss_fn": _mse, "schedule": schedule, "wrap": wrap}
    pipeline = tr.PipelineParallel(split, 4, mesh=mesh, cuts=cuts, **options)
    pipeline.step(x, y)
    pairs = _compared(pipeline, whole, "gradient")
    own = {name for name, _ in pipeline.module.named_parameters()}
    pairs["calls"] = tuple(
        np.array([[*map(int, name.split(".")[:1]), len(found[name])] for name in sorted(own)])
        for found in (seen, whole_seen)
    )
    for name in sorted(own):
        pairs[f"calls of {name}"] = _added(seen[name]), _added(whole_seen[name])
    return pairs


def _added(sums: list[Any]) -> Any:
    """What each microbatch adds to a gradient; sorted, since they come in a schedule's order."""
    each = np.diff(np.array(sums).reshape(len(sums), -1), axis=0, prepend=0.0)
    return each[np.argsort(each[:, 0])]


class _Rest:
    """A model's layers after the embedding, as one module."""

    def __init__(self, kind: str, model: Any) -> None:
        class Rest(_tools(kind)[0].Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.blocks, self.head = model.blocks, model.head

            def forward(self, x: Any) -> Any:
                return self.head(self.blocks[2](self.blocks[1](*self.blocks[0](x))))

        self.made = Rest()


def buffered(rank: int, kind: str) -> Pairs:
    """Running means are those of one pass over each microbatch, though some are computed anew, and
    layers are measured before; a layer may be called twice."""

    def made() -> Any:
        def make(found: Any) -> Any:
            again = found.Linear(WIDTH, WIDTH)
            norm = getattr(found, "BatchNorm1d", found.LayerNorm)(WIDTH)
            return found.Sequential(again, norm, again, found.Tanh())

        return _layers(kind, make)

    x, y = _rows(kind)
    model = made()
    for part in range(4):
        rows = slice(2 * part, 2 * part + 2)
        (_mse(model(x[rows]), y[rows]) * 0.25).backward()
    pairs: Pairs = {}
    ways: dict[str, dict[str, Any]] = {
        "checkpointed": {"cuts": ["2"], "checkpoint": True},
        "measured": {"cuts": 2, "example": x[:2]},
    }
    for way, options in ways.items():
        pipeline = tr.PipelineParallel(made(), 4, loss_fn=_mse, **options)
        pipeline.step(x, y)
        pairs |= _compared(pipeline, model, way)
    return pairs


def without_tokens(rank: int, kind: str) -> Pairs:
    """A microbatch of which nothing counts, and a loss that is no number then."""
    make, loss_fn, tensor = of(kind)
    x, y = batch(0)
    y[:2] = -100
    pipeline = tr.PipelineParallel(
        make(), 12, cuts=CUTS[2], loss_fn=loss_fn, tokens=lambda y: int((y.data >= 0).sum())
    )
    model = make()
    loss = loss_fn(model(tensor(x)), tensor(y))
    loss.backward()
    found = pipeline.step(tensor(x), tensor(y))
    return {"loss": (found, loss.item())} | _compared(pipeline, model, "empty")


def of_torch(rank: int) -> Pairs:
    """What torch's stages do that schedules with weight gradients of their own have to know."""
    import torch
    from torch.utils.checkpoint import checkpoint

    class Anew(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return checkpoint(lambda x: super(Anew, self).forward(x).tanh(), x, use_reentrant=False)

    class Frequencies(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return torch.fft.fft(super().forward(x))

    class Back(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(torch.fft.ifft(x * (1 + 1j)).real)

    def hooked(model: Any) -> Any:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * 2)
        return model

    x, y = _rows("torch")
    models: dict[str, Callable[[], Any]] = {
        "anew": lambda: _layers("torch", lambda nn: nn.Sequential(Anew(12, 12), Anew(12, 12))),
        "hooked": lambda: hooked(
            _layers("torch", lambda nn: nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12)))
        ),
        "complex": lambda: _layers(
            "torch", lambda nn: nn.Sequential(Frequencies(12, 12), Back(12, 12))
        ),
    }
    pairs: Pairs = {}
    for name, make in models.items():
        model = make()
        _mse(model(x), y).backward()
        pipeline = tr.PipelineParallel(
            make(), 4, cuts=["1"], loss_fn=_mse, schedule="zb-h1", checkpoint=name == "complex"
        )
        pipeline.step(x, y)
        pairs |= _compared(pipeline, model, name)
        assert all(each.grad is not None for each in pipeline.module.parameters())
    return pairs


class Residual(nn.Module):
    """Does something between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x: Any) -> Any:
        return self.blocks(x) + x


class Twice(nn.Module):
    """Calls a layer again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def pipeline_layers(self) -> list[str]:
        return ["first", "first", "last"]


def partly_averaged(rank: int) -> str:
    """What is said where the replicas of one stage only are averaged."""
    x, y = map(nn.from_numpy, batch(0))
    mesh = tr.init_device_mesh({"pp": 2, "dp": 2})
    wrap = None if mesh.coordinate["pp"] else lambda stage: stage
    options: dict[str, Any] = {"mesh": mesh, "cuts": CUTS[2], "loss_fn": nn_loss, "wrap": wrap}
    pipeline = tr.PipelineParallel(nn_model(), MICROBATCHES, **options)
    try:
        return str(pipeline.step(x, y))
    except tr.ConfigError as error:
        return str(error)


def wrapped_in_vain(rank: int) -> str:
    """What is said where one stage cannot be wrapped."""

    def wrap(stage: Any) -> Any:
        if any(name.startswith("head") for name, _ in stage.named_parameters()):
            raise ValueError("no wrapper for this stage")
        return stage

    try:
        tr.PipelineParallel(nn_model(), MICROBATCHES, cuts=CUTS[2], loss_fn=nn_loss, wrap=wrap)
    except tr.ConfigError as error:
        return str(error)
    return ""


def wrapped_on_some_replicas(rank: int, wrapper: str) -> str:
    """What is said where one replica of a stage cannot be wrapped, while the other one waits for it
    in the wrapper."""
    mesh = tr.init_device_mesh({"pp": 2, "dp": 2})

    def wrap(stage: Any) -> Any:
        if rank == 3:
            raise ValueError("no wrapper here")
        return getattr(tr, wrapper)(stage, process_group=mesh["dp"])

    options: dict[str, Any] = {"mesh": mesh, "cuts": CUTS[2], "loss_fn": nn_loss, "wrap": wrap}
    try:
        tr.PipelineParallel(nn_model(), MICROBATCHES, **options)
    except tr.ConfigError as error:
        return str(error)
    return ""


def refusals(rank: int) -> list[str]:
    """What each wrong use says."""
    x, y = map(nn.from_numpy, batch(0))
    make: Callable[..., Any] = tr.PipelineParallel
    good: dict[str, Any] = {"cuts": CUTS[2], "loss_fn": nn_loss}
    row = nn.Tensor(np.ones((2, 4), np.float32))
    several = make(nn_model(), 6, cuts=CUTS[4], schedule="interleaved", loss_fn=nn_loss)
    replicated = tr.init_device_mesh({"pp": 1, "dp": 2})
    alone = {"cuts": [], "loss_fn": nn_loss, "mesh": replicated}
    wrong: list[Callable[[], object]] = [
        lambda: make(Residual(), 2, cuts=["blocks.1"], example=row),
        lambda: make(Twice(), 2, cuts=["last"]),
        lambda: make(nn_model(), 6, **good, schedule="/nowhere.csv"),
        lambda: tr.clip_grad_norm_(several.stages[rank], 1.0),
        lambda: make(nn_model(), 6, **good).evaluate(x[:0], y[:0]),
        lambda: make(nn_model(), 6, **good).step(x, y[:12]),
        lambda: make(nn_model(), 6, **alone).step(x, y),
        lambda: make(
            nn_model(),
            6,
            wrap=lambda each: tr.DistributedDataParallel(each, process_group=replicated["pp"]),
            **alone,
        ).step(x, y),
        lambda: make(nn_model(), 6, cuts=CUTS[2], loss_fn=_by_row).step(x, y),
    ]
    said = []
    for call in wrong:
        try:
            call()
            said.append("")
        except (tr.ConfigError, tr.PipelineError) as error:
            said.append(str(error))
    return said


def _by_row(scores: Any, target: Any) -> Any:
    return nn.functional.cross_entropy(scores, target, reduction="none")
