"""Norms of gradients of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Tensor, framework_of

_BLOCK = 1 << 20


def power_sum(gradients: Sequence[Tensor], norm_type: float) -> float:
    """Return what several ranks can add up to a norm: the sum of |x| ** norm_type, or for
    infinity the largest |x|. It is computed in float64, in blocks, by numpy's sum: that of a
    BLAS depends on processors and threads, and ranks with the same gradients would get different
    bits."""
    total = 0.0
    for gradient in gradients:
        array = framework_of(gradient).array(gradient.data.reshape(-1))
        for start in range(0, array.size, _BLOCK):
            part = array[start : start + _BLOCK]
            block = abs(part.astype(np.complex128 if part.dtype.kind == "c" else np.float64))
            if math.isinf(norm_type):
                total = max(total, float(block.max()))
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
    return max(sums, default=0.0) if math.isinf(norm_type) else sum(sums, 0.0)
