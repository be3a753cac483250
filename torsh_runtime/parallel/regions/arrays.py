"""Helps maps with arrays of numpy and cupy, and with torch's tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torsh_runtime.framework.operations import Array as Array
from torsh_runtime.numpy_or_cupy import array_module


def empty(like: Array, shape: Sequence[int]) -> Array:
    """Return an uninitialised array of the same kind."""
    if hasattr(like, "new_empty"):
        return like.new_empty(shape)
    return array_module(like).empty(shape, like.dtype)


def contiguous(array: Array) -> Array:
    """Return the array itself if its elements are contiguous, or a contiguous copy."""
    if hasattr(array, "contiguous"):
        return array.contiguous()
    return array_module(array).ascontiguousarray(array)


def copied(array: Array) -> Array:
    """Return a copy whose elements are contiguous."""
    if hasattr(array, "clone"):
        return array.clone(memory_format=sys.modules["torch"].contiguous_format)
    return array.copy()


def part(array: Array, dim: int, start: int, end: int) -> Array:
    """Return a view of the elements from `start` to `end` (exclusive) along a dimension."""
    return array[(slice(None),) * dim + (slice(start, end),)]


def split(array: Array, dim: int, sizes: Sequence[int]) -> list[Array]:
    """Return consecutive views of these sizes along a dimension."""
    found, start = [], 0
    for size in sizes:
        found.append(part(array, dim, start, start + size))
        start += size
    return found


def resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """Return the shape with a different size along a dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])
