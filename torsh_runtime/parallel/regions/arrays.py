"""What the maps need of arrays, be they numpy's, cupy's or torch's tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torsh_runtime.framework.operations import Array as Array
from torsh_runtime.numpy_or_cupy import array_module


def empty(like: Array, shape: Sequence[int]) -> Array:
    """An uninitialised array of the same kind."""
    if hasattr(like, "new_empty"):
        return like.new_empty(shape)
    return array_module(like).empty(shape, like.dtype)


def contiguous(array: Array) -> Array:
    """The array itself if its elements lie in order, or a copy."""
    if hasattr(array, "contiguous"):
        return array.contiguous()
    return array_module(array).ascontiguousarray(array)


def copied(array: Array) -> Array:
    """A copy whose elements lie in order."""
    if hasattr(array, "clone"):
        return array.clone(memory_format=sys.modules["torch"].contiguous_format)
    return array.copy()


def part(array: Array, dim: int, start: int, end: int) -> Array:
    """A view of the elements from `start` to `end` (exclusive) along a dimension."""
    return array[(slice(None),) * dim + (slice(start, end),)]


def split(array: Array, dim: int, sizes: Sequence[int]) -> list[Array]:
    """Views of these sizes along a dimension, one behind the other."""
    found, start = [], 0
    for size in sizes:
        found.append(part(array, dim, start, start + size))
        start += size
    return found


def resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """The shape with another size along a dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])
