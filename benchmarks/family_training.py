"""Trains models of families, whole and cut, and compares the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.family_models import FAMILIES, Family
from torsh_runtime.parallel.layouts import cut

SENSELESS = "–"
ADAPTED = "q_proj v_proj query value q v c_attn query_key_value qkv_proj query_proj value_proj"
ADAPTED += " Wqkv in_proj q_b_proj kv_b_proj o_proj attn.out_proj c_proj Wo"
"""Names of layers that get adapters."""
STEPS, RATE, NORM, TOLERANCE = 10, 3e-3, 0.5, 1e-9


@dataclass(frozen=True, slots=True)
class Trained:
    """Holds the results of a training."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]


@cache
def whole(name: str, is_deep: bool = False, parts: int = 1, adapted: bool = False) -> Trained:
    """Return the results of one process.

    is_deep: whether the model has enough layers for four stages. parts: the number of parts of each
        batch, whose losses have equal weights.
    """
    family = FAMILIES[name]
    model = built(family, is_deep)
    if adapted:
        model = with_adapters(model)
    clip = partial(torch.nn.utils.clip_grad_norm_, [*model.parameters()], NORM)
    found = trained(model, family, clip, range(parts), parts)
    return replace(found, parameters=parameters_of(model, remove_duplicate=False))


def built(family: Family, is_deep: bool = False) -> Any:
    """Return a model to train."""
    return family.built(**family.deep if is_deep else {}).train()


def with_adapters(model: Any) -> Any:
    """Return the model with low-rank adapters, which are the only trained parameters."""
    import peft

    torch.manual_seed(1)
    names = "|".join(ADAPTED.split())
    config = peft.LoraConfig(r=4, target_modules=rf".*[._]({names})", init_lora_weights=False)
    return peft.get_peft_model(model, config).double()


@contextmanager
def in_float64() -> Iterator[None]:
    """Make models compute in float64 even where they use float32.

    Otherwise their rounding differs where ranks sum partial results.
    """
    kept: Any = torch.float32, torch.Tensor.float
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(kept[0])
        torch.float = torch.float32 = kept[0]
        torch.Tensor.float = kept[1]  # type: ignore[method-assign]


@in_float64()
def trained(
    model: Any,
    family: Family,
    clip: Callable[[], Any],
    places: Sequence[int] = (0,),
    count: int = 1,
) -> Trained:
    """Train the parameters that require gradients.

    places: the parts, of `count` of each batch, on which to train. Their losses have equal weights.
    """
    chosen = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=RATE)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        every = [family.loss_of(model, step, place, count) for place in places]
        loss = torch.stack(every).mean()
        loss.backward()
        norms.append(float(clip()))
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, norms, parameters_of(model))


def parameters_of(model: Any, **options: bool) -> dict[str, Tensor]:
    return {name: each.detach() for name, each in model.named_parameters(**options)}


def compared(
    own: Trained,
    reference: Trained,
    layouts: Mapping[str, Any],
    mesh: Any,
    tolerance: float = TOLERANCE,
) -> str:
    """Return the largest difference on this rank, or "" if all are within the tolerance."""
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
    return _judged(told, tolerance)


def _furthest(pairs: Iterable[tuple[float, float]]) -> float:
    return max(abs(one - other) for one, other in pairs)


def _judged(told: Mapping[str, float], tolerance: float) -> str:
    worst = max(told, key=lambda each: np.nan_to_num(told[each], nan=np.inf))
    return f"{worst} {told[worst]:.0e}" if not told[worst] <= tolerance else ""
