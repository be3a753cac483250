"""Handles arrays of numpy or cupy and torch tensors by one code path, in pieces that fit the
processor's cache."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from torsh_runtime.compression import tensors
from torsh_runtime.compression.tensors import TensorArray
from torsh_runtime.errors import ConfigError
from torsh_runtime.numpy_or_cupy import array_module as numpy_or_cupy
from torsh_runtime.numpy_or_cupy import bfloat16

Array = Any
"""A numpy or cupy array, or a TensorArray."""
_IN_CACHE = 1 << 16
"""Elements per piece."""
_PRECISIONS = {"float16": "float32", "bfloat16": "float32", "float32": "float32"}


def array_module(array: Array) -> Any:
    """Return the functions for the array: those of numpy, of cupy, or of tensors on its device."""
    return array.module if isinstance(array, TensorArray) else numpy_or_cupy(array)


def working_dtype(array: Array) -> np.dtype[Any]:
    """Return the dtype to compute in: float64 for float64, else float32.

    Raises TypeError unless the array is float16, bfloat16, float32 or float64.
    """
    name = array.dtype.name
    if name not in _PRECISIONS and name != "float64":
        raise TypeError(
            f"gradients of dtype {name} cannot be compressed; float16, bfloat16, float32 and "
            f"float64 can"
        )
    found: np.dtype[Any] = np.dtype(_PRECISIONS.get(name, name))
    return found


def half_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype float16 or bfloat16.

    Raises ConfigError for other names, and BackendUnavailable if ml_dtypes is missing.
    """
    if name == "float16":
        return np.dtype(np.float16)
    if name != "bfloat16":
        raise ConfigError(f"{name!r} is neither 'float16' nor 'bfloat16'")
    return bfloat16()


def pieces(array: Array) -> Iterator[slice]:
    """Yield slices of the array's first dimension to process in turn; a GPU's array is one
    piece."""
    width = math.prod(array.shape[1:]) or 1
    step = max(_IN_CACHE // width, 1) if array_module(array) is np else max(len(array), 1)
    for begin in range(0, len(array), step):
        yield slice(begin, begin + step)


def is_finite(array: Array) -> bool:
    """Return whether no element is NaN or infinite, without a temporary array."""
    return not array.size or all(math.isfinite(float(x)) for x in (array.max(), array.min()))


def drop_what_is_not_finite(array: Array) -> None:
    """Set elements that are NaN or infinite to 0."""
    if isinstance(array, TensorArray):
        tensors.drop_what_is_not_finite(array)
    elif not is_finite(array):
        array[~array_module(array).isfinite(array)] = 0


def nan_unless_finite(values: Array, of: Array) -> None:
    """Set all values to NaN unless all elements of `of` are finite."""
    if isinstance(values, TensorArray):
        tensors.nan_unless_finite(values, of)
    elif not is_finite(of):
        values[...] = np.nan


def shortened(array: Array, limit: float) -> Array:
    """Return the array, scaled in place to a Euclidean norm of at most `limit`."""
    if isinstance(array, TensorArray):
        return tensors.shortened(array, limit)
    norm = float(array_module(array).linalg.norm(array))
    if norm > limit:
        array *= limit / norm
    return array


def on_host(array: Array) -> np.ndarray[Any, Any]:
    """Return a copy in this process's memory."""
    return np.array(array.get() if array_module(array) is not np else array)


def seed_of(*numbers: int | str) -> int:
    """Return one seed derived from several numbers or names."""
    words = [zlib.crc32(n.encode()) if isinstance(n, str) else n for n in numbers]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
