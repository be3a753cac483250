"""Finds the largest elements without sorting them all."""

from __future__ import annotations

import numpy as np

from torsh_runtime.compression import tensors
from torsh_runtime.compression.arrays import Array, array_module, pieces
from torsh_runtime.compression.tensors import TensorArray

_SMALL = 1 << 16
_SAMPLE = 1 << 14
"""Minimum number of sampled elements; large arrays use a hundredth."""
_MORE = 1.25
"""Ratio of candidates to wanted elements, so that there are seldom too few."""


def at_least(values: Array, threshold: float) -> Array:
    """Return the ascending indices of elements that are NaN or at least `threshold` in
    magnitude."""
    xp = array_module(values)
    found = [
        xp.flatnonzero(~(xp.abs(values[piece]) < threshold)) + piece.start
        for piece in pieces(values)
    ]
    return xp.concatenate(found)


def largest(values: Array, k: int) -> Array:
    """Return the ascending indices of exactly the k elements largest in magnitude, NaN first.

    As in Deep Gradient Compression (Lin et al., ICLR 2018, section 3.1) a sample
    estimates their least magnitude. One pass finds the candidates above it, and only among those
    are the largest selected.
    """
    xp = array_module(values)
    if k >= values.size:
        return xp.arange(values.size)
    if isinstance(values, TensorArray):
        return tensors.largest(values, k)
    if values.size <= _SMALL:
        return _among(values, xp.arange(values.size), k)
    least = float(np.finfo(values.dtype).smallest_subnormal)
    candidates = at_least(values, max(_estimate(values, k), least))
    if candidates.size < k:  # the sample was deceptive, or most are zero
        candidates = at_least(values, least)
    if candidates.size < k:
        zeros = xp.flatnonzero(values == 0)[: k - candidates.size]
        return xp.sort(xp.concatenate([candidates, zeros]))
    return _among(values, candidates, k)


def _among(values: Array, candidates: Array, k: int) -> Array:
    xp = array_module(values)
    others = candidates.size - k
    chosen = xp.argpartition(xp.abs(values[candidates]), others)[others:]
    return xp.sort(candidates[chosen])


def _estimate(values: Array, k: int) -> float:
    """Estimate the magnitude that somewhat more than k elements reach."""
    xp = array_module(values)
    count = max(values.size // 100, _SAMPLE)
    # Not at regular distances: that could be the same column of each row.
    where = np.random.default_rng(0).integers(values.size, size=count)
    above = int(_MORE * count * k / values.size) + 32
    if above >= count:
        return 0.0
    return float(xp.partition(xp.abs(values[xp.asarray(where)]), count - above)[count - above])
