"""Wraps operations in which numpy's and cupy's arrays differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from torsh_runtime.errors import BackendUnavailable
from torsh_runtime.numpy_or_cupy import array_module as array_module
from torsh_runtime.numpy_or_cupy import bfloat16

Array: TypeAlias = Any
"""A numpy or cupy array."""
_BLOCK = 1 << 15
"""Elements of a block whose temporaries stay in a processor's cache."""


def is_array(value: object) -> bool:
    """Return whether `value` is an array that a tensor can hold unchanged."""
    return isinstance(value, (np.ndarray, array_module(value).ndarray))


def dtype_named(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of this name.

    Raises BackendUnavailable for "bfloat16" if the package ml_dtypes is missing.
    """
    return bfloat16() if dtype == "bfloat16" else np.dtype(dtype)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Return whether gradients can have the dtype."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def computable(array: Array) -> Array:
    """Return the array, converted to float32 if it is of a 16-bit type, which is for storage
    only."""
    dtype = array.dtype
    return array.astype(np.float32) if dtype.itemsize == 2 and is_floating(dtype) else array


def fitted(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum `gradient` over the axes along which an operand of `shape` was broadcast."""
    if gradient.shape == shape:
        return gradient
    added = tuple(range(gradient.ndim - len(shape)))
    gradient = gradient.sum(axis=added) if added else gradient
    widened = tuple(
        axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] != 1
    )
    return gradient.sum(axis=widened, keepdims=True) if widened else gradient


def rows_of(array: Array) -> Array:
    """Return the array (…, width) as (rows, width), even if it has no elements."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def add_at(target: Array, index: Any, values: Array) -> None:
    """Add values to target[index] in place; an element may be indexed several times."""
    array_module(target).add.at(target, index, values)


def write(target: Array, source: Any) -> None:
    """Copy a number or an array of any device into an array."""
    if is_array(source) and array_module(source) is not array_module(target):
        source = to_device(source, "cpu" if array_module(target) is np else "cuda")
    target[...] = source


def to_device(array: Array, device: str) -> Array:
    """Return the array in the memory of "cpu" or "cuda"; the same array if it is there already.

    Raises ValueError for other devices, BackendUnavailable if cupy is needed and missing.
    """
    on_host = array_module(array) is np
    if device == "cpu":
        return array if on_host else array.get()
    if not device.startswith("cuda"):
        raise ValueError(f"there is no device {device!r}; use 'cpu' or 'cuda'")
    if not on_host:
        return array
    try:
        return import_module("cupy").asarray(array)
    except ImportError:
        raise BackendUnavailable(
            "nn on GPUs", "Install cupy: `pip install cupy-cuda12x`, or cupy-cuda13x."
        ) from None


def blocks(array: Array) -> Iterator[slice]:
    """Yield slices of the first axis for work in several passes that should stay in the cache."""
    length = len(array)
    if array_module(array) is not np:
        yield slice(0, length)
        return
    rows = max(1, _BLOCK * length // max(1, array.size))
    for start in range(0, length, rows):
        yield slice(start, min(start + rows, length))
