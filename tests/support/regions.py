"""Differentiable collectives beside what one process computes; each function one rank's part."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torsh_runtime as tr
from torsh_runtime import nn
from torsh_runtime.parallel import regions

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A region, and what it does seen from outside."""

    call: Callable[[Any, tr.ProcessGroup], Any]
    expected: Callable[[Sequence[Array]], Sequence[Array]]
    """What ranks get of what they have."""
    shapes: Callable[[int], tuple[int, ...]]
    """Of what a rank has."""
    all_have_the_same: bool = False
    all_use_the_same: bool = False


def sizes(ranks: int) -> list[int]:
    """Of parts, of which one is empty."""
    return [2 * rank for rank in range(ranks)]


def starts(ranks: int) -> list[int]:
    return [sum(sizes(ranks)[:rank]) for rank in range(ranks)]


def cut(array: Array, dim: int, ranks: int) -> list[Array]:
    return np.split(array, starts(ranks)[1:], dim)


def sent(rank: int, other: int) -> int:
    """How much goes from one to the other where that is up to both."""
    return (rank + 2 * other) % 3


def exchanged(arrays: Sequence[Array]) -> list[Array]:
    ranks = len(arrays)
    rows = []
    for rank, array in enumerate(arrays):
        ends = np.cumsum([sent(rank, other) for other in range(ranks)])
        rows.append(np.split(array, ends[:-1]))
    return [np.concatenate([row[rank] for row in rows]) for rank in range(ranks)]


def cases(ranks: int) -> dict[str, Case]:
    parts, whole = sizes(ranks), sum(sizes(ranks))
    found = {
        "copy": Case(
            regions.copy,
            lambda arrays: arrays,
            lambda rank: (2, 3),
            all_have_the_same=True,
        ),
        "reduce": Case(
            regions.reduce,
            lambda arrays: [sum(arrays, np.zeros(()))] * ranks,
            lambda rank: (2, 3),
            all_use_the_same=True,
        ),
        "gather alike": Case(
            lambda x, group: regions.gather(x, group, 0),
            lambda arrays: [np.concatenate(arrays)] * ranks,
            lambda rank: (2, 3),
            all_use_the_same=True,
        ),
        "all_to_all": Case(
            lambda x, group: regions.all_to_all(
                x,
                group,
                [sent(group.rank, other) for other in range(ranks)],
                [sent(other, group.rank) for other in range(ranks)],
            ),
            exchanged,
            lambda rank: (sum(sent(rank, other) for other in range(ranks)), 2),
        ),
        "all_to_all turns": Case(
            lambda x, group: regions.all_to_all(x, group, parts, [1] * ranks, -1, 0),
            lambda arrays: [
                np.concatenate([cut(each, 1, ranks)[rank] for each in arrays])
                for rank in range(ranks)
            ],
            lambda rank: (1, whole),
        ),
    }
    for dim in (0, 1, 2):
        found |= _along(dim, ranks)
    return found


def _along(dim: int, ranks: int) -> dict[str, Case]:
    """What works along a dimension, whose shape is otherwise (2, 3, 2)."""
    parts, whole = sizes(ranks), sum(sizes(ranks))

    def of(size: int) -> tuple[int, ...]:
        return tuple(size if each == dim else 2 + each % 2 for each in range(3))

    def joined(arrays: Sequence[Array]) -> list[Array]:
        return [np.concatenate(arrays, dim)] * ranks

    return {
        f"gather {dim}": Case(
            lambda x, group: regions.gather(x, group, dim, parts),
            joined,
            lambda rank: of(parts[rank]),
            all_use_the_same=True,
        ),
        f"scatter {dim}": Case(
            lambda x, group: regions.scatter(x, group, dim, parts),
            lambda arrays: cut(arrays[0], dim, ranks),
            lambda rank: of(whole),
            all_have_the_same=True,
        ),
        f"all_gather {dim}": Case(
            lambda x, group: regions.all_gather(x, group, dim - 3, parts),
            joined,
            lambda rank: of(parts[rank]),
        ),
        f"reduce_scatter {dim}": Case(
            lambda x, group: regions.reduce_scatter(x, group, dim, parts),
            lambda arrays: cut(sum(arrays, np.zeros(())), dim, ranks),
            lambda rank: of(whole),
        ),
    }


def inputs(case: Case, ranks: int) -> list[Array]:
    """What each rank has."""
    own = [
        np.random.default_rng(0 if case.all_have_the_same else rank).normal(size=case.shapes(rank))
        for rank in range(ranks)
    ]
    return [own[0]] * ranks if case.all_have_the_same else own


def loss(case: Case, arrays: Sequence[Array]) -> float:
    """What all ranks minimise together: each looks at what it gets in its own way, unless all use
    that alike."""
    outputs = case.expected(arrays)
    counted = outputs[:1] if case.all_use_the_same else outputs
    return float(sum(np.sin((1 + rank) * each).sum() for rank, each in enumerate(counted)))


def numerical(case: Case, ranks: int, rank: int) -> Array:
    """The gradient of what the rank has, by central differences."""
    arrays = [each.copy() for each in inputs(case, ranks)]
    if case.all_have_the_same:
        arrays = [arrays[0]] * ranks
    found, step = np.zeros_like(arrays[rank]), 1e-5
    for place in np.ndindex(found.shape):
        before = arrays[rank][place]
        arrays[rank][place] = before + step
        above = loss(case, arrays)
        arrays[rank][place] = before - step
        found[place] = (above - loss(case, arrays)) / (2 * step)
        arrays[rank][place] = before
    return found


class Framework:
    """What differs between torch and nn here."""

    def __init__(self, name: str) -> None:
        self.is_torch = name == "torch"
        self.torch: Any = importlib.import_module("torch") if self.is_torch else None

    def leaf(self, array: Array, needs_gradient: bool = True) -> Any:
        """A leaf of these values, whose elements do not lie in order."""
        turned = np.ascontiguousarray(array.T)
        if self.is_torch:
            plain = self.torch.from_numpy(turned).permute(*reversed(range(array.ndim)))
            return plain.requires_grad_(needs_gradient)
        return nn.Tensor(turned.T, requires_grad=needs_gradient)

    def checkpointed(self, call: Callable[[Any], Any], tensor: Any) -> Any:
        if self.is_torch:
            checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
            return checkpoint(call, tensor, use_reentrant=False)
        return nn.checkpoint(call, tensor)

    def no_grad(self) -> Any:
        return self.torch.no_grad() if self.is_torch else nn.no_grad()


def differences(name: str, framework: str, rank: int, ranks: int) -> dict[str, float]:
    """How far what this rank got, and its gradients in several settings, are from what one process
    computes."""
    case, group, kind = cases(ranks)[name], tr.group.WORLD, Framework(framework)
    assert group is not None
    own = inputs(case, ranks)
    expected, gradient = case.expected(own)[rank], numerical(case, ranks, rank)
    weight = 1 if case.all_use_the_same else 1 + rank

    def farthest(found: Any, wanted: Array) -> float:
        array = found.detach().numpy()
        assert array.shape == wanted.shape
        return float(np.abs(array - wanted).max(initial=0))

    def used(tensor: Any) -> Any:
        return (case.call(tensor * 1, group) * weight).sin().sum()

    leaf, again, constant = kind.leaf(own[rank]), kind.leaf(own[rank]), kind.leaf(own[rank], False)
    with kind.no_grad():
        silent = case.call(leaf, group)
    of_constant = case.call(constant, group)
    assert silent is leaf or not silent.requires_grad
    assert not of_constant.requires_grad
    result = case.call(leaf, group)
    (result * weight).sin().sum().backward()
    kind.checkpointed(used, again).backward()
    return {
        "result": farthest(result, expected),
        "result under no_grad": farthest(silent, expected),
        "result without gradient": farthest(of_constant, expected),
        "gradient": farthest(leaf.grad, gradient),
        "gradient when checkpointed": farthest(again.grad, gradient),
        "input": farthest(leaf, own[rank]),
    }


def overwriting(framework: str, rank: int, ranks: int) -> bool:
    """Whether a sum that may takes the memory of what it is of, and has its gradient."""
    kind, group = Framework(framework), tr.group.WORLD
    assert group is not None
    leaf = kind.leaf(np.full((2, 3), rank + 1.0))
    product = leaf * 2
    address = product.detach().numpy().__array_interface__["data"]
    total = regions.reduce(product, group, overwrites=True)
    (total * 3).sum().backward()
    found = total.detach().numpy()
    in_place = found.__array_interface__["data"] == address
    fits = (found == ranks * (ranks + 1)).all() and (leaf.grad.numpy() == 6).all()
    return bool(in_place and fits)


def refused(framework: str, rank: int, ranks: int) -> list[str]:
    """What each wrong call says."""
    kind, group = Framework(framework), tr.group.WORLD
    assert group is not None
    tensor = kind.leaf(np.zeros((2, 3)))
    wrong = [
        lambda: regions.scatter(tensor, group, 1, [1] * (ranks + 1)),
        lambda: regions.scatter(tensor, group, 1, [2] * ranks),
        lambda: regions.gather(tensor, group, 0, [3] * ranks),
        lambda: regions.all_to_all(tensor, group, [5] * ranks, [1] * ranks),
        lambda: regions.copy(np.zeros(2), group),
    ]
    said = []
    for call in wrong:
        try:
            call()
        except (tr.ConfigError, TypeError) as error:
            said.append(str(error))
    return said


def twice(rank: int, ranks: int) -> bool:
    """Whether torch can differentiate a gradient once more."""
    torch: Any = importlib.import_module("torch")
    group = tr.group.WORLD
    assert group is not None
    leaf = torch.full((2,), 3.0, dtype=torch.float64, requires_grad=True)
    used = (regions.copy(leaf, group) * (rank + 1)) ** 3
    (first,) = torch.autograd.grad(used.sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    summed = regions.reduce(leaf * (rank + 1), group, overwrites=True)
    (inner,) = torch.autograd.grad((summed**3).sum(), summed, create_graph=True)
    (own,) = torch.autograd.grad(inner.sum(), leaf)
    return bool(
        np.allclose(second.numpy(), sum(6 * 3 * (r + 1) ** 3 for r in range(ranks)))
        and np.allclose(own.numpy(), 6 * summed.detach().numpy() * (rank + 1))
    )


def without_gradients(none_on: Sequence[int], rank: int) -> str:
    """What torch says of a function that returns no gradient on some ranks, or the sum of them."""
    torch: Any = importlib.import_module("torch")
    group = tr.group.WORLD
    assert group is not None

    class Used(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return None if rank in none_on else gradient

    leaf = torch.ones(2, requires_grad=True)
    try:
        Used.apply(regions.copy(leaf * 1, group)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return str(leaf.grad)


def transformed(rank: int) -> list[str]:
    """What regions say where torch differentiates forward, or transforms functions."""
    torch: Any = importlib.import_module("torch")
    group = tr.group.WORLD
    said = []
    ones = torch.ones(2, 2)
    for call in (regions.copy, regions.reduce):

        def used(x: Any, call: Callable[..., Any] = call) -> Any:
            return call(x, group).sum()

        for transform in (
            lambda: torch.func.grad(used)(ones),
            lambda: torch.func.vmap(used)(ones),
            lambda: torch.func.jvp(used, (ones,), (ones,)),
        ):
            try:
                transform()
            except NotImplementedError as error:
                said.append(str(error))
    return said


def compiled(rank: int) -> list[float]:
    """How far torch.compile's results and gradients are from plain ones. It must not warn."""
    torch = importlib.import_module("torch")
    group = tr.group.WORLD

    def step(x: Any) -> Any:
        y = regions.reduce(torch.sin(regions.copy(x * 2, group)), group)
        return (y * regions.gather(x, group, 0).sum()).sum()

    def found(call: Callable[[Any], Any]) -> list[Any]:
        x = torch.arange(4.0, dtype=torch.float64).requires_grad_()
        loss = call(x)
        loss.backward()
        return [loss.detach(), x.grad]

    plain = found(step)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo detected")
        traced = found(torch.compile(step, backend="eager"))
    return [float((a - b).abs().max()) for a, b in zip(plain, traced, strict=True)]


def alone(framework: str) -> bool:
    """Whether regions of a group of one rank are nothing at all."""
    group = tr.DeviceMesh((tr.get_world_size(), 1), ("dp", "tp"))["tp"].get_group()
    tensor = Framework(framework).leaf(np.zeros((2, 3)))
    found = [
        regions.copy(tensor, group),
        regions.reduce(tensor, group),
        regions.gather(tensor, group, 0),
        regions.scatter(tensor, group, 0, [2]),
        regions.all_gather(tensor, group, 0),
        regions.reduce_scatter(tensor, group, 0, [2]),
        regions.all_to_all(tensor, group, [2], [2]),
    ]
    return all(each is tensor for each in found)
