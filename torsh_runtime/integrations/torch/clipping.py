"""Lets torch's clip_grad_norm_ know the norm of gradients of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch.nn import utils as nn_utils
from torch.nn.utils import clip_grad

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.parts import Part, check_norm_type
from torsh_runtime.framework.torch_foreach import norm
from torsh_runtime.integrations.torch.marks import marks_of

_ASKED = "_torsh_asked"
"""Attribute of a norm: its exponent, and whether it must be finite."""


def watch_clipping() -> None:
    """Change torch's clip_grad_norm_ and its parts from now on, also where programs have imported
    them."""
    for name, around in (("_get_total_norm", _noting), ("_clip_grads_with_norm_", _clipping)):
        theirs: Any = getattr(clip_grad, name)
        inner: Any = getattr(theirs, "__wrapped__", None)
        cells = [each for each in theirs.__closure__ or () if each.cell_contents is inner]
        if cells:  # all names of the decorated function call what it has there
            cells[0].cell_contents = around(inner)
        else:
            setattr(clip_grad, name, around(theirs))
            setattr(nn_utils, name[1:], around(theirs))


def _noting(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def noted(
        tensors: Any,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Any:
        """Call torch's own, and leave it to _clip_grads_with_norm_() to refuse infinite norms."""
        each = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        found = theirs([t for t in each if t.numel()], norm_type, False, foreach)
        setattr(found, _ASKED, (float(norm_type), error_if_nonfinite))
        return found

    return noted


def _clipping(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def clip(parameters: Any, max_norm: float, total_norm: Any, foreach: Any = None) -> Any:
        """Call torch's own, with the norm over all ranks, which also `total_norm` becomes.

        Raises ConfigError for parameters that are not cut over all ranks.
        """
        each = [parameters] if isinstance(parameters, torch.Tensor) else [*parameters]
        norm_type, is_checked = getattr(total_norm, _ASKED, (math.nan, False))
        parts = [part for marks in map(marks_of, each) if marks for part in marks.parts]
        if parts:
            _check(parts, is_known=not math.isnan(norm_type))
            check_norm_type(norm_type)
            total_norm.copy_(_norm_over(parts[0].group, each, norm_type))
        if is_checked and not bool(torch.isfinite(total_norm)):
            raise RuntimeError(
                f"The total norm of order {norm_type} for gradients from `parameters` is "
                f"non-finite, so it cannot be clipped. To disable this error and scale the "
                f"gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
            )
        return theirs(each, max_norm, total_norm, foreach)

    return clip


def _check(parts: Iterable[Part], is_known: bool) -> None:
    for part in parts:
        if not is_known or part.clipping is not None:
            raise ConfigError(
                f"torch.nn.utils.clip_grad_norm_ knows this rank's parts of gradients only, such "
                f"as of {part.name!r}, and their norm is another one on each rank: call "
                f"{part.clipping or 'clip_grad_norm_() instead'}, on all ranks"
            )


def _norm_over(group: ProcessGroup, parameters: Sequence[Any], norm_type: float) -> torch.Tensor:
    """Return the norm of all gradients: of parts on all ranks, and of whole ones on this rank. It
    is on the device of the first part, which this rank has without gradients, too, and for which
    nothing waits here."""
    place = next(each for each in parameters if marks_of(each) is not None)
    there = [(marks_of(each) is None, each.grad) for each in parameters if each.grad is not None]
    cut, whole = (
        _power_sum([grad for is_whole, grad in there if is_whole is wanted], norm_type, place)
        for wanted in (False, True)
    )
    sums = torch.cat([_told(group, cut), whole])
    return sums.max() if math.isinf(norm_type) else sums.sum() ** (1 / norm_type)


def _told(group: ProcessGroup, own: torch.Tensor) -> torch.Tensor:
    """Return this number of each rank. Those in the host's memory, as of parts that are offloaded
    there, are exchanged with any backend, NCCL's included."""
    if own.is_cpu:
        numbers = group.all_gather_numbers(own.numpy().view(np.int64))
        return torch.from_numpy(numbers.view(np.float64).reshape(-1).copy())
    told = own.new_empty(group.world_size)
    group.all_gather_into_tensor(told, own)
    return told


def _power_sum(
    gradients: Sequence[torch.Tensor], norm_type: float, place: torch.Tensor
) -> torch.Tensor:
    """Return the sum of |gradient| ** norm_type in float64, or for infinity the largest
    |gradient|, as one element on the device of `place`."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for each in gradients:
        if each.numel():
            by_device.setdefault(each.device, []).append(each)
    if not by_device:
        return place.new_zeros(1, dtype=torch.float64)
    norms = torch.cat([norm(each, norm_type).to(place.device) for each in by_device.values()])
    if math.isinf(norm_type):
        return norms.amax(0, keepdim=True)
    return (norms**norm_type).sum(0, keepdim=True)
