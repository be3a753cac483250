"""Every operation of torsh_runtime.nn beside torch's of the same name, on several shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from torsh_runtime import nn
from torsh_runtime.nn import functional as F  # noqa: N812

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One operation on inputs of some shapes; `theirs` gets torch and torch's functional."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[Shape, ...]
    positive: bool = False
    smooth: bool = True
    """Whether numerical gradients make sense for random inputs."""

    def inputs(self, dtype: Any) -> list[np.ndarray]:
        generator = np.random.default_rng(sum(map(ord, self.name)) + len(self.shapes))
        values = [generator.normal(0, 1, shape) for shape in self.shapes]
        return [(np.abs(v) + 0.5 if self.positive else v).astype(dtype) for v in values]

    def __str__(self) -> str:
        return f"{self.name}-{'-'.join('x'.join(map(str, shape)) or '1' for shape in self.shapes)}"


def same(name: str, call: Callable[..., Any], *shapes: tuple[Shape, ...], **options: Any) -> Any:
    """Cases of a call that is written alike for both: call(library, functional, *inputs)."""
    for each in shapes:
        yield Case(
            name,
            lambda *inputs: call(nn, F, *inputs),
            lambda torch, *inputs: call(torch, torch.nn.functional, *inputs),
            each,
            **options,
        )


PAIRS = (
    ((3, 4), (3, 4)),
    ((2, 3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((), (3,)),
    ((1,), (1,)),
    ((0, 3), (3,)),
)
ONES = (((3, 4),), ((2, 3, 5),), ((1,),), ((),), ((0, 3),))
_NEVER = np.array([[0.0] * 4, [-np.inf, 0, 0, 0], *[[0.0] * 4] * 3])
"""Scores of -inf where the target is ignored."""
FULL = (((3, 4),), ((2, 3, 5),), ((1, 1),))


def elementwise() -> Iterator[Case]:
    yield from same("add", lambda n, f, a, b: a + b, *PAIRS)
    yield from same("sub", lambda n, f, a, b: a - b, *PAIRS)
    yield from same("mul", lambda n, f, a, b: a * b, *PAIRS)
    yield from same("div", lambda n, f, a, b: a / b, *PAIRS, positive=True)
    yield from same("pow", lambda n, f, a, b: a**b, *PAIRS, positive=True)
    yield from same("maximum", lambda n, f, a, b: n.maximum(a, b), *PAIRS)
    yield from same("minimum", lambda n, f, a, b: n.minimum(a, b), *PAIRS)
    yield from same("where", lambda n, f, a, b: n.where(a > b, a, b), *PAIRS)
    yield from same(
        "scalars", lambda n, f, a: (2 - a) * 3 / (1 + a * a) + 2 / a, *ONES, positive=True
    )
    yield from same("square", lambda n, f, a: a**2, *ONES)
    yield from same("cube root", lambda n, f, a: a ** (1 / 3), *ONES, positive=True)
    yield from same("power of two", lambda n, f, a: 2**a, *ONES)
    yield from same("power 0", lambda n, f, a: a**0 + a, *ONES)
    yield from same("neg", lambda n, f, a: -a, *ONES)
    yield from same("abs", lambda n, f, a: abs(a), *ONES)
    yield from same("exp", lambda n, f, a: a.exp(), *ONES)
    yield from same("log", lambda n, f, a: a.log(), *ONES, positive=True)
    yield from same("sqrt", lambda n, f, a: a.sqrt(), *ONES, positive=True)
    yield from same("sin", lambda n, f, a: a.sin() * a.cos(), *ONES)
    yield from same("tanh", lambda n, f, a: a.tanh(), *ONES)
    yield from same("sigmoid", lambda n, f, a: a.sigmoid(), *ONES)
    yield from same("relu", lambda n, f, a: f.relu(a), *ONES)
    yield from same("gelu", lambda n, f, a: f.gelu(a), *ONES)
    yield from same("gelu far", lambda n, f, a: f.gelu(a * 5), *ONES)
    yield from same("gelu tanh", lambda n, f, a: f.gelu(a, approximate="tanh"), *ONES)
    yield from same("silu", lambda n, f, a: f.silu(a), *ONES)
    yield from same("clamp", lambda n, f, a: a.clamp(-0.5, 0.7) + a.clamp(min=0.1), *ONES)
    yield from same("masked_fill", lambda n, f, a: a.masked_fill(a > 0.3, 2.0), *ONES)
    yield from same("cast", lambda n, f, a: a.double().sin() * a.float(), *ONES, smooth=False)
    yield from same("clone", lambda n, f, a: a.clone() * 2, *ONES)


def reductions() -> Iterator[Case]:
    for name in ("sum", "mean", "var"):
        yield from same(name, lambda n, f, a, m=name: getattr(a, m)(), *FULL[:2])
        yield from same(name + " 0", lambda n, f, a, m=name: getattr(a, m)(0), *FULL[:2])
        yield from same(
            name + " keep", lambda n, f, a, m=name: getattr(a, m)(-1, keepdim=True), *FULL[:2]
        )
        yield from same(name + " two", lambda n, f, a, m=name: getattr(a, m)((0, 1)), *FULL[:2])
    yield from same("sum of none", lambda n, f, a: a.sum(0), ((0, 3),))
    yield from same("population", lambda n, f, a: a.var(1, correction=0), *FULL)
    yield from same("max", lambda n, f, a: a.max(), *FULL)
    yield from same("min", lambda n, f, a: a.min(), *FULL)
    yield from same("max 1", lambda n, f, a: a.max(1)[0] + a.max(1, keepdim=True)[0].sum(), *FULL)
    yield from same("min 0", lambda n, f, a: a.min(0)[0], *FULL)
    yield from same("argmax", lambda n, f, a: a * a.argmax(-1, keepdim=True), *FULL, smooth=False)
    yield from same("argmin", lambda n, f, a: a[0] * a.argmin(0), *FULL, smooth=False)


def shaping() -> Iterator[Case]:
    cube = ((2, 3, 4),)
    index = np.array([2, 0, 2])
    yield from same("reshape", lambda n, f, a: a.reshape(4, 6) * a.reshape((-1, 1)).sum(), cube)
    yield from same("flatten", lambda n, f, a: a.flatten(1) * 2, cube)
    yield from same("permute", lambda n, f, a: a.permute(2, 0, 1) * a.permute((2, 0, 1)), cube)
    yield from same("transpose", lambda n, f, a: a.transpose(0, -1).contiguous() * 2, cube)
    yield from same("unsqueeze", lambda n, f, a: a.unsqueeze(1).squeeze(1) * 3, cube)
    yield from same("squeeze", lambda n, f, a: a.squeeze() * 3 + a.squeeze(0).sum(), ((1, 3, 1),))
    yield from same("expand", lambda n, f, a: a.expand(2, 3, -1) * 2, ((3, 1),), ((1, 4),))
    yield from same("slice", lambda n, f, a: a[1:, ::2, None, ...] * a[0, 1].sum(), cube)
    yield from same("from behind", lambda n, f, a: a[-2:, -1, :-1] * a[..., -3].sum(), cube)
    yield from same("rows", lambda n, f, a: a[:, index] * a[0, index, 1].sum(), cube)
    yield from same("rows of one", lambda n, f, a: a[1, :, index - 1] * a[-1, None, :, index], cube)
    yield from same("listed", lambda n, f, a: a[..., [1, 0], 2] * a[:, [2, 2], [0, 3]].sum(), cube)
    yield from same("mask", lambda n, f, a: a[a > 0] * 2, cube)
    yield from same(
        "mask of rows", lambda n, f, a: a[a[..., 0] > 0] * a[1, a[0, :, 1] > 0].sum(), cube
    )
    yield from same("iterate 1", lambda n, f, a: sum(x * i for i, x in enumerate(a)), ((3,),))
    yield from same("iterate", lambda n, f, a: sum(part * i for i, part in enumerate(a)), cube)
    yield from same("stack", lambda n, f, a, b: n.stack([a, b, a], 1), ((2, 3), (2, 3)))
    yield from same("split", lambda n, f, a: a.split(2, 2)[1] * 2, cube)
    yield from same("split sizes", lambda n, f, a: a.split([1, 3], -1)[1] * 2, cube)
    yield from same("chunk", lambda n, f, a: a.chunk(2, 1)[0] * a.chunk(2, 1)[1], cube)
    yield from same("unbind", lambda n, f, a: a.unbind(1)[0] * 2, cube)
    yield Case(
        "concat",
        lambda a, b: nn.concat([a, b], 1),
        lambda torch, a, b: torch.cat([a, b], 1),
        ((2, 3), (2, 1)),
    )


def products() -> Iterator[Case]:
    shapes = (
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4,)), ((3, 4), (4,)),
        ((4,), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
        ((0, 4), (4, 2)), ((2, 3, 0), (0, 4)), ((2, 3, 4), (4, 0)),
    )  # fmt: skip
    yield from same("matmul", lambda n, f, a, b: a @ b, *shapes)
    yield from same("matrix", lambda n, f, a, b: a.T @ n.matmul(a, b.t()), ((3, 4), (5, 4)))
    layers = (((2, 3, 4), (5, 4), (5,)), ((4,), (5, 4), (5,)), ((0, 4), (5, 4), (5,)),
              ((2, 0), (5, 0), (5,)))  # fmt: skip
    yield from same("linear", lambda n, f, x, w, b: f.linear(x, w, b), *layers)
    yield from same("no bias", lambda n, f, x, w: f.linear(x.transpose(0, 1), w), ((4, 3), (2, 4)))


def normalising() -> Iterator[Case]:
    yield from same("softmax", lambda n, f, a: f.softmax(a, dim=-1), *FULL, ((3, 0),))
    yield from same("softmax 0", lambda n, f, a: a.softmax(0), *FULL)
    yield from same(
        "log_softmax", lambda n, f, a: f.log_softmax(a, dim=1), *FULL, ((0, 3),), ((3, 0),)
    )
    norms = (((2, 3, 4), (4,), (4,)), ((3, 4), (3, 4), (3, 4)), ((5000, 8), (8,), (8,)))
    yield from same("layer_norm", lambda n, f, x, w, b: f.layer_norm(x, w.shape, w, b), *norms)
    yield from same(
        "shifted norm", lambda n, f, x, b: f.layer_norm(x, (4,), bias=b), ((3, 4), (4,))
    )
    yield from same("plain norm", lambda n, f, x: f.layer_norm(x, (4,)), ((3, 4),), ((0, 4),))
    yield from same("rms_norm", lambda n, f, x, w: f.rms_norm(x, w.shape, w), ((2, 3, 4), (4,)))
    yield from same("rms_norm eps", lambda n, f, x: f.rms_norm(x, (4,), eps=0.1), ((3, 4),))


def losses() -> Iterator[Case]:
    both = (((3, 4), (3, 4)), ((1,), (1,)))
    yield from same("mse", lambda n, f, a, b: f.mse_loss(a, b), *both)
    yield from same("mse sum", lambda n, f, a, b: f.mse_loss(a, b, reduction="sum"), *both)
    yield from same("mse none", lambda n, f, a, b: f.mse_loss(a, b, reduction="none"), *both)
    target = np.array([1, -100, 3, 0, 1])
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.2):
            options = {"reduction": reduction, "label_smoothing": smoothing}
            yield Case(
                f"cross_entropy {reduction} {smoothing}",
                lambda a, o=options: F.cross_entropy(a, nn.from_numpy(target), **o),
                lambda torch, a, o=options: torch.nn.functional.cross_entropy(
                    a, torch.from_numpy(target), **o
                ),
                ((5, 4),),
            )
    yield Case(
        "cross_entropy of nothing",
        lambda a: F.cross_entropy(a, nn.from_numpy(np.full(5, -100))),
        lambda torch, a: torch.nn.functional.cross_entropy(a, torch.full((5,), -100)),
        ((5, 4),),
        smooth=False,
    )
    yield Case(
        "cross_entropy of what cannot be",
        lambda a: F.cross_entropy(a + nn.tensor(_NEVER, a.dtype), nn.from_numpy(target)),
        lambda torch, a: torch.nn.functional.cross_entropy(
            a + torch.from_numpy(_NEVER).to(a.dtype), torch.from_numpy(target)
        ),
        ((5, 4),),
        smooth=False,
    )
    image = np.arange(12).reshape(2, 2, 3) % 5
    yield Case(
        "cross_entropy of images",
        lambda a: F.cross_entropy(a, nn.from_numpy(image), ignore_index=3),
        lambda torch, a: torch.nn.functional.cross_entropy(
            a, torch.from_numpy(image), ignore_index=3
        ),
        ((2, 5, 2, 3),),
    )


def lookups() -> Iterator[Case]:
    indices = np.array([[1, 2, 1], [0, 4, 4]])
    for padding in (None, 4):
        yield Case(
            f"embedding {padding}",
            lambda w, p=padding: F.embedding(nn.from_numpy(indices), w, p) * 2,
            lambda torch, w, p=padding: (
                torch.nn.functional.embedding(torch.from_numpy(indices), w, p) * 2
            ),
            ((5, 3),),
            smooth=padding is None,
        )


def images() -> Iterator[Case]:
    size = (((2, 4, 7, 6), (6, 4, 3, 2), (6,)),)
    options: tuple[dict[str, Any], ...] = (
        {}, {"stride": 2}, {"padding": (2, 1)}, {"dilation": 2}, {"stride": (1, 3), "padding": 1},
    )  # fmt: skip
    for each in options:
        yield from same(f"conv2d {each}", lambda n, f, *a, o=each: f.conv2d(*a, **o), *size)
    yield from same(
        "conv2d groups",
        lambda n, f, x, w: f.conv2d(x, w, groups=2, padding=1),
        ((2, 4, 5, 5), (6, 2, 3, 3)),
        ((1, 2, 3, 3), (2, 1, 1, 1)),
    )
    image = ((2, 3, 6, 7),)
    for name in ("max_pool2d", "avg_pool2d"):
        for each in ((2,), ((3, 2), (1, 2)), (3, 2, 1)):
            yield from same(
                f"{name} {each}",
                lambda n, f, x, m=name, o=each: getattr(f, m)(x, *o),
                image,
                ((0, 3, 6, 7),),
            )


def attention() -> Iterator[Case]:
    mask = np.array([[True, False, True], [True, True, False]])
    causal = ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 6))
    cross = ((2, 2, 4), (2, 3, 4), (2, 3, 5))

    def attend(f: Any, *inputs: Any, **options: Any) -> Any:
        return f.scaled_dot_product_attention(*inputs, **options)

    yield from same("attention", lambda n, f, *a: attend(f, *a), causal, cross)
    yield from same("causal", lambda n, f, *a: attend(f, *a, is_causal=True), causal)
    yield from same("scaled", lambda n, f, *a: attend(f, *a, scale=0.3), cross)
    yield Case(
        "masked",
        lambda *a: attend(F, *a, attn_mask=nn.from_numpy(mask)),
        lambda torch, *a: attend(torch.nn.functional, *a, attn_mask=torch.from_numpy(mask)),
        cross,
    )
    yield Case(
        "biased",
        lambda *a: attend(F, *a, attn_mask=nn.tensor(mask * 1.5, dtype=a[0].dtype)),
        lambda torch, *a: attend(
            torch.nn.functional, *a, attn_mask=torch.tensor(mask * 1.5, dtype=a[0].dtype)
        ),
        cross,
    )


CASES = [
    *elementwise(), *reductions(), *shaping(), *products(), *normalising(), *losses(), *lookups(),
    *images(), *attention(),
]  # fmt: skip
