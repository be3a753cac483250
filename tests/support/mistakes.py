"""Mistakes as people make them with parallel models, planted in right ones.

Each is a function that changes a spread model; it is called on every rank of a mesh with the axes
dp and tp, of two ranks each. What verify() has to say of it stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
from support import tensor_parallel
from support.tensor_parallel import SEQUENCE, SPREAD, Plan, kit

import torsh_runtime as tr
from torsh_runtime.parallel import regions

MESH = {"dp": 2, "tp": 2}
Change = Callable[["Bench"], object]
_PARTS = "each rank has a part of a sum along tp"
_TWICE = "it is 2 times that: added up once too often along dp or tp"
_HALF = "it is 1/2 of that"


class Bench:
    """A spread model on one rank."""

    def __init__(self, framework: str, model: Any, mesh: Any) -> None:
        self.tools, self.model, self.mesh = kit(framework), model, mesh

    @property
    def group(self) -> Any:
        return self.mesh.get_group("tp")

    @property
    def rank(self) -> int:
        return int(self.mesh.coordinate["tp"])

    def at(self, name: str) -> Any:
        return dict(self.model.named_modules())[name]

    def parameter(self, name: str) -> Any:
        return dict(self.model.named_parameters())[name]

    def method(self, module: str, name: str, instead: Callable[..., Any]) -> None:
        """instead(self, *arguments) takes the method's place."""
        layer = self.at(module)
        object.__setattr__(layer, name, MethodType(instead, layer))

    def after(self, module: str, change: Callable[[Any], Any]) -> None:
        """What the module returns is changed."""
        self.at(module).register_forward_hook(lambda _, __, returned: change(returned))

    def values(self, name: str, change: Callable[[Any], Any]) -> None:
        """The parameter has other values."""
        parameter = self.parameter(name)
        parameter.data = change(parameter.data)

    def gradient(self, name: str, change: Callable[[Any], Any]) -> None:
        """The parameter's gradient is changed on its way."""
        self.parameter(name).register_hook(change)

    def swap(self, name: str, on_ranks: Collection[int]) -> None:
        """These ranks of tp have the other one's values."""
        found = np.ascontiguousarray(tensor_parallel.plain(self.parameter(name)))
        both = np.empty((2, *found.shape), found.dtype)
        self.group.all_gather_into_tensor(both, found)
        if self.rank in on_ranks:
            self.values(name, lambda _: self.tools.tensor(both[1 - self.rank]).data)


@dataclass(frozen=True)
class Mistake:
    """One, and what has to be said of it."""

    plan: Plan
    change: Change
    kind: str
    name: str
    why: str = ""
    norm: Callable[[Any, Any], float] | None = None
    dropout: float = 0.0
    only: str = ""
    """The framework that it can be made with."""


def _sum_is_left_out(bench: Bench, module: str) -> None:
    bench.method(module, "_summed", lambda _, tensor, dim: tensor)


def _add_again(bench: Bench, module: str) -> None:
    bench.after(module, lambda found: regions.reduce(found, bench.group))


def _bias_before_sum(bench: Bench, module: str) -> None:
    layer = bench.at(module)
    bias = layer.bias
    own = layer._summed

    def summed(_: Any, tensor: Any, dim: Any) -> Any:
        return own(tensor + bias, dim)

    bench.method(module, "_summed", summed)


def _unsummed_entry(bench: Bench, *modules: str) -> None:
    for module in modules:
        bench.method(module, "_entered", lambda _, tensor, *__: tensor)


def _gathered_entry(bench: Bench, module: str) -> None:
    bench.method(module, "_entered", lambda _, x, dim, *__: regions.gather(x, bench.group, dim))


def _swapped_entry(bench: Bench, module: str) -> None:
    def entered(_: Any, tensor: Any, dim: int, *__: Any) -> Any:
        whole = regions.all_gather(tensor, bench.group, dim)
        half = whole.shape[dim] // 2
        return _joined(bench, whole[..., half:, :], whole[..., :half, :])

    bench.method(module, "_entered", entered)


def _joined(bench: Bench, one: Any, other: Any) -> Any:
    if bench.tools.is_torch:
        return bench.tools.torch.cat([one, other], -2)
    return bench.tools.nn.concat([one, other], -2)


def _scattered_only(bench: Bench, module: str) -> None:
    def summed(layer: Any, tensor: Any, dim: int) -> Any:
        length = tensor.shape[dim] // 2
        return regions.scatter(tensor, bench.group, dim, [length] * 2)

    bench.method(module, "_summed", summed)


def _other_part(bench: Bench, module: str) -> None:
    def summed(layer: Any, tensor: Any, dim: int) -> Any:
        length = tensor.shape[dim] // 2
        halves = tensor[..., length:, :], tensor[..., :length, :]
        return regions.reduce_scatter(_joined(bench, *halves), bench.group, dim, [length] * 2)

    bench.method(module, "_summed", summed)


def _on_rank(bench: Bench, rank: int, module: str, change: Callable[[Any], Any]) -> None:
    if bench.rank == rank:
        bench.after(module, change)


def _other_rows(bench: Bench) -> None:
    layer = bench.at("tokens")
    size = layer.end - layer.start
    layer.start, layer.end = layer.start + 1, layer.start + 1 + size


def _untied(bench: Bench) -> None:
    head = bench.at("head")
    weight = bench.tools.nn.Parameter(bench.parameter("tokens.weight").data + 0.0)
    head.weight = weight


def _frozen(bench: Bench, name: str) -> None:
    bench.parameter(name).requires_grad = False


def _seed_of_rank(bench: Bench) -> None:
    layer, tools = bench.at("dropout"), bench.tools
    p = layer.p

    def forward(_: Any, tensor: Any) -> Any:
        tools.seed(100 + bench.rank)
        return tools.F.dropout(tensor, p, True)

    object.__setattr__(layer, "forward", MethodType(forward, layer))


def _one_mask(bench: Bench) -> None:
    layer, tools = bench.at("dropout"), bench.tools
    p = layer.p
    object.__setattr__(
        layer, "forward", MethodType(lambda _, tensor: tools.F.dropout(tensor, p, True), layer)
    )


def _local_norm(model: Any, mesh: Any) -> float:
    """Of what this rank has."""
    return math.sqrt(sum(float((_grad(p) ** 2).sum()) for p in model.parameters()))


def _norm_of_all(model: Any, mesh: Any) -> float:
    """With replicas counted on each rank."""
    total = np.array([_local_norm(model, mesh) ** 2])
    mesh.get_group("tp").all_reduce(total)
    return math.sqrt(total[0])


def _norm_over_all_axes(model: Any, mesh: Any) -> float:
    return tr.clip_grad_norm_(model, math.inf, mesh) * math.sqrt(2)


def _norm_without_head(model: Any, mesh: Any) -> float:
    model.tokens.weight.grad = None
    return tr.clip_grad_norm_(model, math.inf, mesh)


def _grad(parameter: Any) -> Any:
    return tensor_parallel.plain(parameter.grad)


def averaged_over(axis: str) -> Change:
    """The model wrapped so that gradients are averaged over an axis."""
    return lambda bench: tr.DistributedDataParallel(bench.model, process_group=bench.mesh[axis])


def _nothing(bench: Bench) -> None:
    """It is right."""


def _spread(change: Change, kind: str, name: str, why: str = "", **more: Any) -> Mistake:
    return Mistake(SPREAD, change, kind, name, why, **more)


def _sequence(change: Change, kind: str, name: str, why: str = "", **more: Any) -> Mistake:
    return Mistake(SEQUENCE, change, kind, name, why, **more)


MISTAKES: dict[str, Mistake] = {
    "a sum left out after the MLP": _spread(
        lambda b: _sum_is_left_out(b, "blocks.0.down"), "activation", "blocks.0.down", ""
    ),
    "a sum left out after the attention": _spread(
        lambda b: _sum_is_left_out(b, "blocks.1.out"), "activation", "blocks.1.out", ""
    ),
    "a sum left out after the table": _spread(
        lambda b: _sum_is_left_out(b, "tokens"), "activation", "tokens", _PARTS
    ),
    "a sum made twice": _spread(
        lambda b: _add_again(b, "blocks.0.down"), "activation", "blocks.0.down", _TWICE
    ),
    "a sum of the table made twice": _spread(
        lambda b: _add_again(b, "tokens"), "activation", "tokens", _TWICE
    ),
    "an average for a sum": _spread(
        lambda b: b.after("tokens", lambda found: found * 0.5), "activation", "tokens", _HALF
    ),
    "a bias added on each rank": _spread(
        lambda b: _bias_before_sum(b, "blocks.0.down"), "activation", "blocks.0.down"
    ),
    "a bias added on each rank after the attention": _spread(
        lambda b: _bias_before_sum(b, "blocks.1.out"), "activation", "blocks.1.out"
    ),
    "rows one too far": _spread(_other_rows, "activation", "tokens"),
    "an input's gradient not added up": _spread(
        lambda b: _unsummed_entry(b, "blocks.1.up"), "output's gradient", "blocks.1.norm2", _PARTS
    ),
    "an input's gradient not added up in the attention": _spread(
        lambda b: _unsummed_entry(b, "blocks.0.q", "blocks.0.k", "blocks.0.v"),
        "output's gradient",
        "blocks.0.norm1",
        _PARTS,
    ),
    "an input's gradient not added up for the queries": _spread(
        lambda b: _unsummed_entry(b, "blocks.0.q"), "output's gradient", "blocks.0.norm1"
    ),
    "an input's gradient not added up in the head": _spread(
        lambda b: _unsummed_entry(b, "head"), "output's gradient", "norm", _PARTS
    ),
    "a gradient added up twice": _spread(
        lambda b: b.after("norm", lambda found: regions.copy(found, b.group)),
        "output's gradient",
        "blocks.1",
        _TWICE,
    ),
    "a gradient halved": _spread(
        lambda b: b.gradient("norm.weight", lambda g: g * 0.5), "gradient", "norm.weight", _HALF
    ),
    "a gradient of a part halved": _spread(
        lambda b: b.gradient("blocks.0.up.weight", lambda g: g * 0.5),
        "gradient",
        "blocks.0.up.weight",
        _HALF,
    ),
    "a gradient doubled": _spread(
        lambda b: b.gradient("blocks.1.down.bias", lambda g: g * 2.0),
        "gradient",
        "blocks.1.down.bias",
        _TWICE,
    ),
    "a gradient set to zero": _spread(
        lambda b: b.gradient("blocks.1.out.weight", lambda g: g * 0.0),
        "gradient",
        "blocks.1.out.weight",
        "nothing but zeros",
    ),
    "a gradient with the wrong sign": _spread(
        lambda b: b.gradient("blocks.1.k.weight", lambda g: g * -1.0),
        "gradient",
        "blocks.1.k.weight",
        "it is -1 times that",
    ),
    "a frozen parameter": _spread(
        lambda b: _frozen(b, "blocks.0.norm2.weight"), "gradient", "blocks.0.norm2.weight"
    ),
    "the other rank's weights": _spread(
        lambda b: b.swap("blocks.0.q.weight", on_ranks=(0, 1)),
        "parameter",
        "blocks.0.q.weight",
        "it is what the rank with tp 1 has to have",
    ),
    "the first rank's weights on both": _spread(
        lambda b: b.swap("blocks.1.v.bias", on_ranks=(1,)),
        "parameter",
        "blocks.1.v.bias",
        "it is what the rank with tp 0 has to have",
    ),
    "a replica with other values": _spread(
        lambda b: b.values("norm.weight", lambda own: own + 0.001 * b.rank),
        "parameter",
        "norm.weight",
        "ranks along tp differ",
    ),
    "a bias with other values": _spread(
        lambda b: b.values("blocks.0.down.bias", lambda own: own * (1.0 + b.rank)),
        "parameter",
        "blocks.0.down.bias",
        "ranks along tp differ",
    ),
    "noise on one rank": _spread(
        lambda b: _on_rank(b, 1, "blocks.1.norm1", lambda found: found * (1.0 + 1e-6)),
        "activation",
        "blocks.1.norm1",
        "ranks along tp differ",
    ),
    "queries that are scaled": _spread(
        lambda b: b.after("blocks.0.q", lambda found: found * 2.0),
        "activation",
        "blocks.0.q",
        "it is 2 times that",
    ),
    "something that is no number": _spread(
        lambda b: _on_rank(b, 0, "blocks.1.up", lambda found: found * math.nan),
        "activation",
        "blocks.1.up",
        "no number",
    ),
    "another epsilon": _spread(lambda b: setattr(b.at("norm"), "eps", 1e-3), "activation", "norm"),
    "values that are squared": _spread(
        lambda b: _on_rank(
            b,
            1,
            "blocks.0.v",
            lambda found: found[..., ::-1] if not b.tools.is_torch else found.flip(-1),
        ),
        "activation",
        "blocks.0.v",
    ),
    "a head that is no longer tied": _spread(_untied, "gradient", "tokens.weight"),
    "a norm of one rank": _spread(_nothing, "norm", "", norm=_local_norm),
    "a norm that counts replicas twice": _spread(_nothing, "norm", "", norm=_norm_of_all),
    "a norm that counts all twice": _spread(_nothing, "norm", "", norm=_norm_over_all_axes),
    "a norm without the table": _spread(_nothing, "norm", "", norm=_norm_without_head),
    "masks that differ on replicas": _spread(
        _seed_of_rank, "mask", "dropout", dropout=0.5, only="torch"
    ),
    "masks that are alike on parts": _sequence(
        _one_mask, "mask", "dropout", dropout=0.5, only="torch"
    ),
    "a norm layer's gradients not added up": _sequence(
        lambda b: b.method("blocks.0.norm1", "_shared", lambda _, parameter: parameter),
        "gradient",
        "blocks.0.norm1.weight",
        _PARTS,
    ),
    "the last norm layer's gradients not added up": _sequence(
        lambda b: b.method("norm", "_shared", lambda _, parameter: parameter),
        "gradient",
        "norm.weight",
        _PARTS,
    ),
    "gathered, and not added up backward": _sequence(
        lambda b: _gathered_entry(b, "blocks.1.up"), "output's gradient", "blocks.1.norm2"
    ),
    "the sequence's halves swapped": _sequence(
        lambda b: _swapped_entry(b, "head"), "activation", "head"
    ),
    "scattered, and not added up": _sequence(
        lambda b: _scattered_only(b, "blocks.0.down"), "activation", "blocks.0.down"
    ),
    "the other half of a sum": _sequence(
        lambda b: _other_part(b, "tokens"),
        "activation",
        "tokens",
        "it is what the rank with tp 1 has to have",
    ),
    "a bias of parts not added up": _sequence(
        lambda b: b.gradient("blocks.0.out.bias", lambda g: g * 0.5),
        "gradient",
        "blocks.0.out.bias",
        _HALF,
    ),
    "an activation of zeros": _sequence(
        lambda b: b.after("dropout", lambda found: found * 0.0), "activation", "dropout", "zeros"
    ),
}
"""By what is wrong."""


def said_of(mistake: Mistake, framework: str) -> Any:
    """What verify() finds."""
    tools = kit(framework)
    if tools.is_torch:
        tools.torch.set_num_threads(1)
    mesh = tr.init_device_mesh(MESH)

    def plan(model: Any) -> Any:
        spread = tr.parallelize(model, mesh, mistake.plan)
        changed = mistake.change(Bench(framework, spread, mesh))
        return changed if isinstance(changed, tr.DistributedDataParallel) else spread

    indices = np.random.default_rng(1).integers(
        tensor_parallel.CLASSES, size=(4, tensor_parallel.LENGTH)
    )
    norm = None if mistake.norm is None else (lambda model: mistake.norm(model, mesh))
    model = tensor_parallel.gpt(tools, dropout=mistake.dropout)
    return tr.verify(model, mesh, plan, tools.tensor(indices), norm=norm)


def refused(framework: str, rank: int) -> tuple[str, str]:
    """What verify() says of what it cannot compare."""
    tools, mesh = kit(framework), tr.init_device_mesh({"dp": 2})
    model, found = tensor_parallel.gpt(tools), []
    for rows, step in ((3, None), (2, lambda *_: 0.0)):
        indices = tools.tensor(np.zeros((rows, tensor_parallel.LENGTH), np.int64))
        try:
            tr.verify(model, mesh, lambda spread: spread, indices, step=step)
        except tr.ConfigError as error:
            found.append(str(error))
    return found[0], found[1]
