"""What arrays have to be asked: numpy's or cupy's alike, so that all else is written once."""

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
    """Whether `value` is an array that a tensor can hold as it is."""
    return isinstance(value, (np.ndarray, array_module(value).ndarray))


def dtype_named(dtype: Any) -> np.dtype[Any]:
    """The dtype; "bfloat16" needs the package ml_dtypes (BackendUnavailable without it)."""
    return bfloat16() if dtype == "bfloat16" else np.dtype(dtype)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether gradients can be of that dtype."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def computable(array: Array) -> Array:
    """The array; as float32 if it is of a 16-bit type, which is for storage alone."""
    dtype = array.dtype
    return array.astype(np.float32) if dtype.itemsize == 2 and is_floating(dtype) else array


def fitted(gradient: Array, shape: tuple[int, ...]) -> Array:
    """The sum of `gradient` over the axes along which an operand of `shape` was broadcast."""
    if gradient.shape == shape:
        return gradient
    added = tuple(range(gradient.ndim - len(shape)))
    gradient = gradient.sum(axis=added) if added else gradient
    widened = tuple(
        axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] != 1
    )
    return gradient.sum(axis=widened, keepdims=True) if widened else gradient


def rows_of(array: Array) -> Array:
    """The array (…, width) as (rows, width), even if it has no elements."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def add_at(target: Array, index: Any, values: Array) -> None:
    """target[index] += values, where an element may be named several times."""
    array_module(target).add.at(target, index, values)


def write(target: Array, source: Any) -> None:
    """Copy a number or an array, of whichever device, into an array."""
    if is_array(source) and array_module(source) is not array_module(target):
        source = to_device(source, "cpu" if array_module(target) is np else "cuda")
    target[...] = source


def to_device(array: Array, device: str) -> Array:
    """The array in the memory of "cpu" or "cuda"; itself if it is there already.

    BackendUnavailable if the package cupy is wanted and missing.
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
    """Slices of the first axis for work in several passes that shall stay in the cache."""
    length = len(array)
    if array_module(array) is not np:
        yield slice(0, length)
        return
    rows = max(1, _BLOCK * length // max(1, array.size))
    for start in range(0, length, rows):
        yield slice(start, min(start + rows, length))
