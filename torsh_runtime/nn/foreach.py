"""Computes with many arrays at once, without a wait for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module, computable


def norm(arrays: Sequence[Array], order: float) -> Array:
    """Return the norm of each array, as one array of float64 on their device."""
    xp = array_module(arrays[0])
    norms = [xp.linalg.norm(computable(each).reshape(-1), order) for each in arrays]
    return xp.stack([each.astype(np.float64) for each in norms])


def mul_(arrays: Sequence[Array], factor: float) -> None:
    """Multiply all arrays by a number, in place."""
    for each in arrays:
        each *= factor


def unscale_(arrays: Sequence[Array], factor: float) -> Array:
    """Multiply all arrays by a number, in place, and tell of each whether it is not finite."""
    xp = array_module(arrays[0])
    mul_(arrays, factor)
    extremes = [end.astype(np.float64) for each in arrays for end in (each.max(), each.min())]
    return ~xp.isfinite(xp.stack(extremes))


def cat(arrays: Sequence[Array]) -> Array:
    """Return the elements of all arrays, which are of one kind, in one flat array."""
    flat = array_module(arrays[0]).empty(sum(each.size for each in arrays), arrays[0].dtype)
    start = 0
    for each in arrays:
        flat[start : start + each.size] = each.reshape(-1)
        start += each.size
    return flat


def copy_(arrays: Sequence[Array], flat: Array) -> None:
    """Copy the elements of such an array into these."""
    start = 0
    for each in arrays:
        each[...] = flat[start : start + each.size].reshape(each.shape)
        start += each.size


def tolist(array: Array) -> list[float]:
    """Return the elements of a flat array. This waits for its device."""
    found: list[float] = array.tolist()
    return found
