"""Norms of gradients of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Tensor, framework_of
from torsh_runtime.framework.parts import check_norm_type

_BLOCK = 1 << 20


def power_sums(kinds: Sequence[Sequence[Tensor]], norm_type: float) -> list[float]:
    """Return of each list of gradients what several ranks can add up to a norm: the sum of
    |x| ** norm_type, or for infinity the largest |x|. It takes one wait for each GPU."""
    check_norm_type(norm_type)
    by_device: dict[str, list[list[Tensor]]] = {}
    for number, gradients in enumerate(kinds):
        for each in map(_elements, gradients):
            if each.numel():
                here = by_device.setdefault(str(each.device), [[] for _ in kinds])
                here[number].append(each)
    sums = [0.0] * len(kinds)
    for device, lists in by_device.items():
        if device == "cpu":
            found = [_sum_in_blocks(gradients, norm_type) for gradients in lists]
        else:
            found = _sums_on_device(lists, norm_type)
        sums = [joined(pair, norm_type) for pair in zip(sums, found, strict=True)]
    return sums


def _elements(gradient: Tensor) -> Any:
    """Return the elements of a gradient, without the zeros of a sparse one."""
    values: Any = gradient.data
    return values.coalesce().values() if _is_sparse(gradient) else gradient


def _is_sparse(gradient: Tensor) -> bool:
    return getattr(gradient, "is_sparse", False)


def scale(gradients: Sequence[Tensor], factor: float) -> None:
    """Multiply all gradients by a number, in place, without a wait."""
    if gradients:  # to scale a sparse one may replace its elements
        values = [each if _is_sparse(each) else each.data for each in gradients]
        framework_of(gradients[0]).foreach.mul_(values, factor)


def _sums_on_device(kinds: Sequence[Sequence[Tensor]], norm_type: float) -> list[float]:
    """Return the power sums of gradients on one GPU."""
    everything = [each for gradients in kinds for each in gradients]
    foreach = framework_of(everything[0]).foreach
    norms = iter(foreach.tolist(foreach.norm([each.data for each in everything], norm_type)))
    sums = []
    for gradients in kinds:
        own = list(islice(norms, len(gradients)))
        is_largest = math.isinf(norm_type)
        sums.append(joined(own if is_largest else [x**norm_type for x in own], norm_type))
    return sums


def _sum_in_blocks(gradients: Sequence[Tensor], norm_type: float) -> float:
    """Return the power sum of gradients in the host's memory. It is computed in float64, in
    blocks, by numpy's sum: that of a BLAS depends on processors and threads, and ranks with the
    same gradients would get different bits."""
    total = 0.0
    for gradient in gradients:
        array = framework_of(gradient).array(gradient.data.reshape(-1))
        for start in range(0, array.size, _BLOCK):
            part = array[start : start + _BLOCK]
            block = abs(part.astype(np.complex128 if part.dtype.kind == "c" else np.float64))
            if math.isinf(norm_type):
                total = float(np.maximum(total, block.max()))
            elif norm_type == 2:
                total += float(np.square(block, out=block).sum())
            else:
                total += float((block**norm_type).sum())
    return total


def together(group: ProcessGroup, sums: Sequence[float], norm_type: float) -> list[float]:
    """Return all ranks' power sums, each combined in order of rank, so that all get the same
    bits."""
    told = group.all_gather_numbers(np.array(sums, np.float64).view(np.int64)).view(np.float64)
    return [joined(column, norm_type) for column in told.T.tolist()]


def together_in_lines(
    everyone: ProcessGroup, line: ProcessGroup | None, own: float, rest: float, norm_type: float
) -> list[float]:
    """Return the total of each rank of `everyone`, by rank: its `rest`, and what all ranks of
    its line have as `own`. It takes one exchange. line: this rank's line, of those along which
    `everyone` is divided; None: each rank is alone."""
    sums = np.array([own, rest], np.float64).view(np.int64)
    number = everyone.global_rank(everyone.rank) if line is None else line.ranks[0]
    told = everyone.all_gather_numbers(np.array([*sums, number], np.int64))
    numbers, values = told[:, 2].tolist(), np.ascontiguousarray(told[:, :2]).view(np.float64)
    by_line: dict[int, list[float]] = {}
    for number, (value, _) in zip(numbers, values.tolist(), strict=True):
        by_line.setdefault(number, []).append(value)
    of_lines = {number: joined(row, norm_type) for number, row in by_line.items()}
    rests = zip(numbers, values[:, 1].tolist(), strict=True)
    return [joined([each, of_lines[number]], norm_type) for number, each in rests]


def norm_of(sums: Sequence[float], norm_type: float) -> float:
    """Return the norm of all elements that these are the power sums of."""
    total = joined(sums, norm_type)
    return total if math.isinf(norm_type) else float(total ** (1 / norm_type))


def joined(sums: Sequence[float], norm_type: float) -> float:
    """Return power sums of different elements as one."""
    return float(np.max(sums, initial=0.0)) if math.isinf(norm_type) else sum(sums, 0.0)
