"""Implements Foreach by torch's functions of lists of tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
_unscale: Any = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_")  # noqa: B009
_UNSCALED = (torch.float32, torch.float16, torch.bfloat16)
"""Types that torch's function takes; of wider ones it would round the factor to float32."""


def norm(values: Sequence[Tensor], order: float) -> Tensor:
    """Return the norm of each tensor. On a GPU it is added up in float32, unless the tensor is of
    a wider type."""
    found: dict[int, Tensor] = {}
    for numbers in _alike(values):
        some = [values[number] for number in numbers]
        norms = torch.stack(torch._foreach_norm(some, order, dtype=_summed_in(some[0]))).double()
        if len(some) == len(values):
            return norms
        found |= zip(numbers, norms.unbind(), strict=True)
    return torch.stack([found[number] for number in range(len(values))])


@torch.no_grad()
def mul_(values: Sequence[Tensor], factor: float) -> None:
    """Multiply all tensors by a number, in place."""
    for numbers in _alike(values):
        some = [values[number] for number in numbers]
        if some[0].device.type != "cpu":
            torch._foreach_mul_(some, factor)
        else:  # on which it rounds the factor to 16 bits if the tensors have these
            for each in some:
                each.mul_(factor)


@torch.no_grad()
def unscale_(values: Sequence[Tensor], factor: float) -> Tensor:
    """Multiply all tensors by a number, in place, and tell of some whether they are not finite."""
    found = []
    for numbers in _alike(values):
        some = [values[number] for number in numbers]
        if some[0].dtype in _UNSCALED and factor <= 1:  # what it tells is of the tensors before
            flag = some[0].new_zeros(1, dtype=torch.float32)
            _unscale(some, flag, some[0].new_full((1,), factor, dtype=torch.float32))
            found.append(flag)
        else:
            mul_(some, factor)
            plain = [torch.view_as_real(each) if each.is_complex() else each for each in some]
            extremes = torch.stack([end for each in plain for end in torch.aminmax(each)])
            found.append(extremes.isfinite().logical_not().float())
    return torch.cat(found)


def cat(values: Sequence[Tensor]) -> Tensor:
    """Return the elements of all tensors, which are of one kind, in one flat tensor."""
    return torch.cat([each.detach().reshape(-1) for each in values])


@torch.no_grad()
def copy_(values: Sequence[Tensor], flat: Tensor) -> None:
    """Copy the elements of such a tensor into these."""
    parts = torch.split(flat, [each.numel() for each in values])
    views = [part.view(each.shape) for part, each in zip(parts, values, strict=True)]
    torch._foreach_copy_([*values], views)


def tolist(values: Tensor) -> list[float]:
    """Return the elements of a flat tensor."""
    found: list[float] = values.cpu().tolist()
    return found


def _summed_in(tensor: Tensor) -> torch.dtype:
    if tensor.is_complex():
        return torch.complex128 if tensor.device.type == "cpu" else tensor.dtype
    is_wide = tensor.dtype is torch.float64 or tensor.device.type == "cpu"
    return torch.float64 if is_wide else torch.float32


def _alike(values: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield the numbers of tensors of one device and dtype, for which torch has fused kernels."""
    kinds: dict[Hashable, list[int]] = {}
    for number, each in enumerate(values):
        kinds.setdefault((each.device, each.dtype), []).append(number)
    yield from kinds.values()
