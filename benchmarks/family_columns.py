"""What is done with families of models: each column of benchmarks/families.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torsh_runtime as tr
from benchmarks.family_models import FAMILIES, Batch, Family
from torsh_runtime.parallel.layouts import cut

STEPS, RATE, NORM, TOLERANCE = 10, 3e-3, 0.5, 1e-9
RIGHT, REFUSED, WRONG = "right", "refused", "WRONG"
SENSELESS, NOT_TRIED = "–", "not tried"
TOKENS = 8


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training left."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]


@cache
def whole(name: str) -> Trained:
    """That of one process."""
    family = FAMILIES[name]
    model = family.built().train()
    clip = partial(torch.nn.utils.clip_grad_norm_, [*model.parameters()], NORM)
    return trained(model, family, clip)


@contextmanager
def in_float64() -> Iterator[None]:
    """Let models have all their numbers in float64, also those that they compute in float32,
    whatever they are given, whose rounding would be another one where a sum is."""
    kept: Any = torch.float32, torch.Tensor.float
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.float = torch.float32 = kept[0]
        torch.Tensor.float = kept[1]  # type: ignore[method-assign]


@in_float64()
def trained(model: Any, family: Family, clip: Callable[[], Any]) -> Trained:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = family.loss_of(model, step)
        loss.backward()
        norms.append(float(clip()))
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, norms, {name: each.detach() for name, each in model.named_parameters()})


def tensor_parallel(name: str, mesh: Any, sequence: bool = False) -> str:
    """Of parallelize(model, mesh, "auto"), or with parts of sequences between layers."""
    family = FAMILIES[name]
    model = family.built().train()
    plan = tr.plan_of(model, mesh.size(), sequence=True) if sequence else "auto"
    tr.parallelize(model, mesh, plan)
    found = trained(model, family, lambda: tr.clip_grad_norm_(model, NORM, mesh))
    return compared(found, whole(name), tr.layouts_of(model), mesh)


def compared(own: Trained, reference: Trained, layouts: Mapping[str, Any], mesh: Any) -> str:
    """What of them is not the same on any rank; "" if all is."""
    told: dict[str, float] = {
        "losses": _furthest(zip(own.losses, reference.losses, strict=True)),
        "norms": _furthest(zip(own.norms, reference.norms, strict=True)),
    }
    for name, parameter in own.parameters.items():
        expected = reference.parameters[name]
        if name in layouts:
            piece = layouts[name].piece(mesh.coordinate)
            expected = torch.from_numpy(cut(expected.numpy(), piece).copy())
        told[name] = float((expected.reshape(parameter.shape) - parameter).abs().max())
    return _judged(told)


def _furthest(pairs: Iterable[tuple[float, float]]) -> float:
    return max(abs(one - other) for one, other in pairs)


def _judged(told: Mapping[str, float]) -> str:
    worst = max(told, key=lambda each: np.nan_to_num(told[each], nan=np.inf))
    return f"{worst} {told[worst]:.0e}" if not told[worst] <= TOLERANCE else ""


@in_float64()
def generated(model: Any, batch: Batch, **options: Any) -> Tensor:
    """Tokens."""
    torch.manual_seed(7)
    found: Tensor = model.generate(**batch, **options, max_new_tokens=TOKENS, min_new_tokens=6)
    return found


def generating(name: str, mesh: Any) -> str:
    """Tokens out of a cut model with a cache: greedy, drawn and by beams."""
    family = FAMILIES[name]
    if not family.generates:
        return SENSELESS
    plain, model = family.built().eval(), family.built().eval()
    tr.parallelize(model, mesh, "auto")
    batch = {key: each[:2] for key, each in family.batch(0).items() if key != "labels"}
    ways: dict[str, dict[str, Any]] = {
        "greedy": {},
        "drawn": {"do_sample": True, "top_k": 20},
        "beams": {"num_beams": 3},
    }
    for way, options in ways.items():
        if not torch.equal(*(generated(each, batch, **options) for each in (plain, model))):
            return f"other tokens ({way})"
    return ""


@dataclass(frozen=True, slots=True)
class Column:
    """One way to spread models."""

    ranks: int
    run: Callable[[str, Any], str] | None
    """(family, mesh of one axis "tp") -> what is wrong; "" for nothing, SENSELESS where there is no
    such thing. None: not tried."""


COLUMNS: Mapping[str, Column] = {
    "TP 2": Column(2, tensor_parallel),
    "TP 4": Column(4, tensor_parallel),
    "TP + SP 2": Column(2, partial(tensor_parallel, sequence=True)),
    "generate": Column(2, generating),
    "PP 1f1b": Column(2, None),
    "PP zbv": Column(2, None),
    "CP": Column(2, None),
    "TP × PP × DP": Column(8, None),
}
"""By title."""
