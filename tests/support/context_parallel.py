"""Attention over parts of sequences beside that of one process; each function one rank's part."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torsh_runtime as tr
from torsh_runtime import nn

Array = NDArray[Any]
METHODS = ("ring", "all_gather", "all_to_all")


@dataclass(frozen=True)
class Case:
    """A call. Heads and lengths fit the number of ranks, if they are given by rank."""

    causal: bool = True
    kv_heads: int | None = None
    """None: as many as heads."""
    documents: Any = None
    length: int = 24
    value_size: int = 4
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    mask: Any = None
    """Of each row, which tokens are padding: from one place to another."""


_ROUNDED = ((32, 2.0), (32, 2.0), (16, 1.0), (16, 1.0))
"""Sizes of heads, and how large the numbers are: of query, key, value and gradient."""
CASES = {
    "causal": Case(),
    "whole": Case(causal=False),
    "uneven": Case(length=29),
    "grouped": Case(kv_heads=1),
    "grouped whole": Case(kv_heads=1, causal=False, scale=0.3),
    "packed": Case(documents=[0, 3, 3, 14, 20, 24]),
    "packed whole": Case(documents=[0, 7, 23, 24], causal=False),
    "packed by row": Case(documents=[[0, 5, 24], [0, 1, 2, 22, 24]]),
    "wide values": Case(value_size=6),
    "in columns": Case(kv_heads=1, length=601),
    "window": Case(window=5),
    "window of one": Case(window=1, length=29),
    "wide window": Case(window=17, kv_heads=1, documents=[0, 20, 24]),
    "window on both sides": Case(window=4, causal=False, length=29),
    "window, columns": Case(kv_heads=1, length=601, window=290),
    "capped": Case(softcap=2.0, kv_heads=1),
    "sinks": Case(has_sinks=True, scale=0.3),
    "padded": Case(mask=[(0, 7), (19, 24)]),
    "padded whole": Case(mask=[(3, 4), (10, 24)], causal=False),
    "everything": Case(
        window=6, softcap=3.0, has_sinks=True, mask=[(0, 5), (0, 0)], documents=[0, 11, 24]
    ),
}


class Framework:
    """What differs between torch and nn here."""

    def __init__(self, name: str) -> None:
        self.is_torch = name == "torch"
        self.torch: Any = importlib.import_module("torch") if self.is_torch else None

    def tensor(self, array: Array, needs_gradient: bool = False) -> Any:
        if self.is_torch:
            return self.torch.tensor(array, requires_grad=needs_gradient)
        return nn.Tensor(array, requires_grad=needs_gradient)

    def attention(self, case: Case, query: Any, key: Any, value: Any, *sinks: Any) -> Any:
        """Of one process."""
        several = query.shape[1] // key.shape[1]
        repeated = np.repeat(np.arange(key.shape[1]), several)
        key, value, mask = key[:, repeated], value[:, repeated], visible(case)
        functional = self.torch.nn.functional if self.is_torch else nn.functional
        if case.softcap is None and not sinks and mask.any(-1).all():
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=self.tensor(mask), scale=case.scale
            )
        scores = query @ key.transpose(-1, -2) * (case.scale or query.shape[-1] ** -0.5)
        if case.softcap is not None:
            scores = (scores * (1 / case.softcap)).tanh() * case.softcap
        weights = scores.exp() * self.tensor(mask.astype(float))
        total = weights.sum(-1)[..., None] + self.tensor(1e-30 * np.ones(1))
        for each in sinks:
            total = total + each.exp()[:, None, None]
        return (weights / total) @ value


def visible(case: Case) -> Array:
    """Who looks at whom, (batch, 1, length, length)."""
    order = np.arange(case.length)
    causal = order[:, None] >= order if case.causal else np.ones((case.length,) * 2, bool)
    rows = case.documents or [0, case.length]
    rows = rows if isinstance(rows[0], list) else [rows] * 2
    found = []
    for row in rows:
        document = np.zeros(case.length, int)
        for number, (start, end) in enumerate(pairwise(row)):
            document[start:end] = number
        found.append(causal & (document[:, None] == document))
    shown = np.stack(found)[:, None]
    if case.window is not None:
        shown &= abs(order[:, None] - order) < case.window
    return shown & (tokens(case) != 0)[:, None, None]


def tokens(case: Case) -> Array:
    """1 for tokens, 0 for padding, (batch, length)."""
    found = np.ones((2, case.length), np.int64)
    for row, (start, end) in enumerate(case.mask or ()):
        found[row, start:end] = 0
    return found


def operands(case: Case, ranks: int) -> list[Array]:
    """Query, key, value, and weights of the result's elements."""
    random, heads = np.random.default_rng(0), 2 * ranks
    own = case.kv_heads or heads
    sizes = [(heads, 4), (own, 4), (own, case.value_size), (heads, case.value_size)]
    return [random.normal(size=(2, number, case.length, size)) for number, size in sizes]


def run(case: Case, kind: Framework, ranks: int, attention: Any, axis: Any) -> list[Array]:
    """The result and gradients of whole sequences; `axis` has a part of them each, if given."""
    *arrays, weights = operands(case, ranks)
    leaves = [kind.tensor(array, True) for array in arrays]
    sinks = [kind.tensor(np.linspace(-1, 1, len(weights[0])), True)] * case.has_sinks
    if axis is None:
        result = attention(*leaves, *sinks)
        whole = result
    else:
        result = attention(*[tr.context_shard(leaf, axis, 2) for leaf in leaves], *sinks)
        weights = tr.context_shard(weights, axis, 2)
        whole = tr.context_gather(result, axis, case.length, 2)
    (result * kind.tensor(weights)).sin().sum().backward()
    gradients = [np.array(leaf.grad) for leaf in (*leaves, *sinks)]
    if axis is not None:
        for gradient in gradients:
            tr.all_reduce(gradient)
    return [np.array(whole.detach()), *gradients]


@cache
def made(framework: str) -> Framework:
    """Return the framework of this name, which is one object in each process."""
    return Framework(framework)


@cache
def alone(name: str, kind: Framework, ranks: int) -> list[Array]:
    """Return what one process computes: the result and gradients, as of so many ranks."""
    case = CASES[name]
    return run(case, kind, ranks, lambda *tensors: kind.attention(case, *tensors), None)


def differences(
    name: str, method: Any, framework: str | Framework, rank: int, ranks: int
) -> list[float]:
    """How far result and gradients are from those of one process."""
    case = CASES[name]
    kind = made(framework) if isinstance(framework, str) else framework

    def parallel(*tensors: Any) -> Any:
        return tr.context_attention(
            *tensors[:3],
            tr.group.WORLD,
            causal=case.causal,
            method=method,
            documents=case.documents,
            length=case.length,
            scale=case.scale,
            window=case.window,
            softcap=case.softcap,
            sinks=tensors[3] if case.has_sinks else None,
            attention_mask=None if case.mask is None else tokens(case),
        )

    found = run(case, kind, ranks, parallel, tr.group.WORLD)
    expected = alone(name, kind, ranks)
    return [float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True)]


def all_differences(rank: int) -> dict[str, list[float]]:
    """Of torch on four ranks, by case and method."""
    names = ("causal", "window", "window on both sides", "padded", "everything")
    return {
        f"{name}, {method}": differences(name, method, "torch", rank, 4)
        for name in names
        for method in METHODS
    }


def repeats(framework: str, rank: int, ranks: int) -> bool:
    """Whether two runs have the same bits, and a checkpointed one too."""
    kind = Framework(framework)
    mesh = tr.init_device_mesh((1, -1), ("dp", "cp"))

    def parallel(*tensors: Any) -> Any:
        return tr.context_attention(*tensors, mesh["cp"])

    def checkpointed(*tensors: Any) -> Any:
        if kind.is_torch:
            checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
            return checkpoint(parallel, *tensors, use_reentrant=False)
        return nn.checkpoint(parallel, *tensors)

    runs = [
        run(CASES["causal"], kind, ranks, each, mesh["cp"])
        for each in (parallel, parallel, checkpointed)
    ]
    return all((a == b).all() for other in runs[1:] for a, b in zip(runs[0], other, strict=True))


def half_precision(rank: int, ranks: int) -> float:
    """How far bfloat16 tensors of torch are from what float64 gives."""
    import torch

    *arrays, _ = operands(CASES["causal"], ranks)
    leaves = [torch.tensor(array) for array in arrays]
    axis = tr.group.WORLD
    exact = tr.context_attention(*[tr.context_shard(each, axis, 2) for each in leaves], axis)
    small = [tr.context_shard(each.bfloat16(), axis, 2).requires_grad_() for each in leaves]
    found = tr.context_attention(*small, axis)
    found.sum().backward()
    assert found.dtype is torch.bfloat16
    assert all(each.grad is not None and each.grad.dtype is torch.bfloat16 for each in small)
    return float((found.double() - exact).abs().max())


def rounded(rank: int, ranks: int) -> dict[str, tuple[float, float]]:
    """How far attention to values of another size, in 16 bits, is from what float64 gives of the
    same numbers: result and gradients, on average, beside how far one process is."""
    import torch

    axis, attend = tr.group.WORLD, torch.nn.functional.scaled_dot_product_attention
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(1, 2, 512, size)) * scale for size, scale in _ROUNDED]

    def computed(attention: Any, tensors: Any) -> list[Any]:
        *operands, gradient = tensors
        leaves = [each.detach().requires_grad_() for each in operands]
        result = attention(*leaves)
        result.backward(gradient)
        return [result.detach(), *(each.grad for each in leaves)]

    def far(found: list[Any], exact: list[Any]) -> float:
        pairs = zip(found, exact, strict=True)
        return max(float((a.double() - b).abs().mean() / b.abs().mean()) for a, b in pairs)

    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        given = [torch.tensor(each).to(dtype) for each in arrays]
        one = partial(attend, is_causal=True)
        exact = computed(one, [each.double() for each in given])
        own = [tr.context_shard(each, axis, 2) for each in given]
        parts = computed(partial(tr.context_attention, axis=axis), own)
        wholes = [tr.context_gather(each, axis, dim=2) for each in parts]
        found[str(dtype)] = far(wholes, exact), far(computed(one, given), exact)
    return found


def order(rank: int, ranks: int) -> dict[str, Any]:
    """What helpers say of sequences of 11 tokens."""
    axis = tr.group.WORLD
    tokens = np.arange(22).reshape(2, 11)
    leaf = nn.Tensor(tr.context_shard(tokens.astype(float), axis), requires_grad=True)
    whole = tr.context_gather(leaf, axis, 11)
    (whole * nn.Tensor(tokens * (rank + 1.0))).sum().backward()
    assert leaf.grad is not None
    return {
        "own": tr.context_shard(tokens, axis),
        "positions": tr.context_positions(11, axis),
        "within": tr.context_positions(11, axis, [0, 4, 4, 9, 11]),
        "whole": np.array(whole.detach()),
        "gradient": leaf.grad.numpy(),
    }


def without_tokens(framework: str, rank: int) -> str:
    """What a call says that has none."""
    tensors = [Framework(framework).tensor(np.zeros((2, 3, 0, 4))) for _ in range(3)]
    try:
        tr.context_attention(*tensors, tr.group.WORLD)
    except tr.ConfigError as error:
        return str(error)
    return ""


def refused(rank: int, ranks: int) -> list[str]:
    """What each wrong call says; some are wrong on one rank only."""
    axis, zeros = tr.group.WORLD, np.zeros

    def call(tokens: int = 4, kv_heads: int = 3, heads: int = 3, **options: Any) -> Any:
        shapes = [(1, number, tokens, 2) for number in (heads, kv_heads, kv_heads)]
        return tr.context_attention(*[nn.Tensor(zeros(shape)) for shape in shapes], axis, **options)

    wrong: list[Any] = [
        lambda: call(kv_heads=2),
        lambda: call(tokens=4 + rank),
        lambda: call(length=4 * ranks + 1),
        lambda: call(causal=rank == 0),
        lambda: call(method="rings"),
        lambda: call(method="all_to_all"),
        lambda: call(documents=[0, 3, 4 * ranks + rank]),
        lambda: call(documents=[[0, 4 * ranks]] * 2),
        lambda: call(tokens=1),
        lambda: tr.context_shard(zeros((1, ranks)), axis),
        lambda: tr.context_positions(8, axis, [1, 3, 8]),
        lambda: call(documents=[] if rank else None),
        lambda: call(documents=[0, 2.5, 4 * ranks]),
        lambda: call(length="long" if rank else None),
        lambda: call(scale=nn.Tensor(zeros(()), requires_grad=True)),
        lambda: tr.context_attention(*[nn.Tensor(zeros((4,) * (4 - rank)))] * 3, axis),
        lambda: tr.context_attention(
            *[nn.Tensor(zeros((1, 1, 4, 2), kind)) for kind in ("f8", "f4", "f4")], axis
        ),
        lambda: call(window=0),
        lambda: call(window=2.5),
        lambda: call(window=3 + rank),
        lambda: call(softcap=-1.0),
        lambda: call(sinks=nn.Tensor(zeros(2))),
        lambda: call(attention_mask=zeros((1, 4))),
        lambda: call(attention_mask=zeros((2, 4 * ranks))),
    ]
    said = []
    for each in wrong:
        try:
            each()
        except tr.ConfigError as error:
            said.append(str(error))
    return said
