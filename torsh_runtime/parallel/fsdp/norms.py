"""Norms of gradients of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from torsh_runtime.modules.base import ModuleAdapter

_BLOCK = 1 << 20


def power_sum(adapter: ModuleAdapter[Any], gradients: Sequence[Any], norm_type: float) -> float:
    """What several ranks can add up to a norm: the sum of |x| ** norm_type; of infinity, the
    largest |x|. Formed in float64, in blocks."""
    total = 0.0
    for gradient in gradients:
        array = adapter.array(adapter.flattened(gradient))
        for start in range(0, array.size, _BLOCK):
            block = abs(array[start : start + _BLOCK].astype(np.float64))
            if math.isinf(norm_type):
                total = max(total, float(block.max()))
            elif norm_type == 2:
                total += float(block @ block)
            else:
                total += float((block**norm_type).sum())
    return total


def norm_of(sums: Sequence[float], norm_type: float) -> float:
    """The norm of all elements that these are the power sums of."""
    if math.isinf(norm_type):
        return max(sums)
    return float(sum(sums) ** (1 / norm_type))
