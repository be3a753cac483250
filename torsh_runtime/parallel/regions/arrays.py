"""Helps maps with arrays of numpy and cupy, and with torch's tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from torsh_runtime.framework.operations import Array as Array
from torsh_runtime.framework.values import Values
from torsh_runtime.numpy_or_cupy import array_module

V = TypeVar("V", bound=Values)


def empty(like: V, shape: Sequence[int], dtype: Any = None) -> V:
    """Return an uninitialised array of the same kind. dtype: None means that of `like`."""
    found: V
    if hasattr(like, "new_empty"):
        found = like.new_empty(shape, dtype=dtype)
    else:
        found = array_module(like).empty(shape, like.dtype if dtype is None else dtype)
    return found


def contiguous(array: V) -> V:
    """Return the array itself if its elements are contiguous, or a contiguous copy."""
    found: V
    if hasattr(array, "contiguous"):
        found = array.contiguous()
    else:
        found = array_module(array).ascontiguousarray(array)
    return found


def copied(array: V) -> V:
    """Return a copy whose elements are contiguous."""
    given: Any = array
    found: V
    if hasattr(array, "clone"):
        found = given.clone(memory_format=sys.modules["torch"].contiguous_format)
    else:
        found = given.copy()
    return found


def part(array: V, dim: int, start: int, end: int) -> V:
    """Return a view of the elements from `start` to `end` (exclusive) along a dimension."""
    return array[(slice(None),) * dim + (slice(start, end),)]


def split(array: V, dim: int, sizes: Sequence[int]) -> list[V]:
    """Return consecutive views of these sizes along a dimension."""
    found, start = [], 0
    for size in sizes:
        found.append(part(array, dim, start, start + size))
        start += size
    return found


def resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """Return the shape with a different size along a dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])


def stacked(array: V, dim: int, count: int) -> V:
    """Return `count` equal parts along a dimension one after the other in memory, along a new
    first dimension."""
    shape = tuple(array.shape)
    rows: Any = array.reshape((*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]))
    found: V = contiguous(_ordered(rows, (dim, *range(dim), *range(dim + 1, len(shape) + 1))))
    return found


def unstacked(array: V, dim: int) -> V:
    """Return the parts that stacked() has put one after the other, joined along the dimension."""
    count, *shape = array.shape
    order = (*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1))
    found: V = _ordered(array, order).reshape(resized(shape, dim, count * shape[dim]))
    return found


def _ordered(array: Any, order: tuple[int, ...]) -> Any:
    """Return a view with the dimensions in this order."""
    return array.permute(order) if hasattr(array, "permute") else array.transpose(order)
