"""Corrects torch's clipping of gradients of which each rank has a part, or refuses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grad

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.parts import Marks

_KIND = "_torsh_norm_type"
MarksOf = Callable[[Any], Marks | None]


def correct_clipping(marks_of: MarksOf) -> None:
    """Let clip_grad_norm_() know the parts of other ranks. marks_of: returns a parameter's."""
    theirs: Any = clip_grad
    theirs._get_total_norm = _remembering(theirs._get_total_norm)
    theirs._clip_grads_with_norm_ = _clipping(theirs._clip_grads_with_norm_, marks_of)


def _remembering(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def norm(tensors: Any, norm_type: float = 2.0, *given: Any, **named: Any) -> Any:
        """Call torch's own, and note the kind of the norm at its result."""
        each = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        found = theirs([t for t in each if t.numel()], norm_type, *given, **named)
        setattr(found, _KIND, float(norm_type))
        return found

    return norm


def _clipping(theirs: Callable[..., Any], marks_of: MarksOf) -> Callable[..., Any]:
    @wraps(theirs)
    def clip(parameters: Any, max_norm: Any, total_norm: Any, *given: Any, **named: Any) -> Any:
        """Call torch's own, with the norm over all ranks.

        Raises ConfigError for parameters of which that is unknown.
        """
        each = [parameters] if isinstance(parameters, torch.Tensor) else [*parameters]
        marked = [marks_of(parameter) for parameter in each]
        if any(marks and marks.parts for marks in marked):
            kind = getattr(total_norm, _KIND, None)
            _check(marked, kind)
            total_norm.fill_(_norm(each, marked, float(kind or 2)))
        return theirs(each, max_norm, total_norm, *given, **named)

    return clip


def _check(marked: Sequence[Marks | None], kind: float | None) -> None:
    parts = [marks.parts for marks in marked if marks and marks.parts]
    refused = [each[-1] for each in parts if not all(part.adds_up for part in each)]
    if kind is None:
        refused = refused or [parts[0][-1]]
    if refused:
        raise ConfigError(
            f"torch.nn.utils.clip_grad_norm_ knows this rank's parts of gradients only, such as of "
            f"{refused[0].name!r}, and their norm is another one on each rank: call "
            f"{refused[0].clipping}, on all ranks"
        )


def _norm(parameters: Sequence[Any], marked: Sequence[Marks | None], kind: float) -> float:
    """Return the norm of whole gradients. All ranks call it with the same parameters."""
    groups: dict[ProcessGroup | None, list[Any]] = {}
    for parameter, marks in zip(parameters, marked, strict=True):
        group = marks.parts[-1].group if marks and marks.parts else None
        own = groups.setdefault(group, [])
        if parameter.grad is not None and parameter.grad.numel():
            own.append(parameter.grad)
    sums = []
    for group, gradients in groups.items():
        told = [_power_sum(gradients, kind)]
        if group is not None:
            numbers = group.all_gather_numbers(np.array(told, np.float64).view(np.int64))
            told = np.ascontiguousarray(numbers[:, 0]).view(np.float64).tolist()
        sums += told
    return max(sums) if math.isinf(kind) else sum(sums) ** (1 / kind)


def _power_sum(gradients: Sequence[Any], kind: float) -> float:
    norms = [torch.linalg.vector_norm(each, kind, dtype=torch.float64) for each in gradients]
    if math.isinf(kind):
        return max((float(norm) for norm in norms), default=0.0)
    return float(sum(float(norm) ** kind for norm in norms))
