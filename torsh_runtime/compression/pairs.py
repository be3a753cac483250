"""Encodes pairs of index and value as bytes.

The format is: uint32 counts of the pairs in each 65,536 elements, the values,
uint16 indices within those elements, and zeros up to a multiple of 4 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torsh_runtime.compression import tensors
from torsh_runtime.compression.arrays import Array, array_module, half_dtype
from torsh_runtime.compression.tensors import TensorArray

_BITS = 16
_COUNT = 4
"""Bytes of a count."""


def value_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype in which values are sent. Raises ConfigError for unsupported ones."""
    return np.dtype(np.float32) if name == "float32" else half_dtype(name)


def pack(indices: Array, values: Array, size: int) -> Array:
    """Encode pairs as a uint8 array. `indices` are ascending int64 below `size`."""
    xp = array_module(indices)
    counts = xp.bincount(indices >> _BITS, minlength=_blocks(size)).astype(np.uint32)
    lows = (indices & 0xFFFF).astype(np.uint16)
    head, middle, end = _bounds(size, len(lows), values.dtype)
    packed = xp.zeros(-(-end // _COUNT) * _COUNT, np.uint8)
    packed[:head] = counts.view(np.uint8)
    packed[head:middle] = values.view(np.uint8)
    packed[middle:end] = lows.view(np.uint8)
    return packed


def unpack(
    packed: Array, size: int, dtype: np.dtype[Any], pairs: int | None = None
) -> tuple[Array, Array]:
    """Return the indices and values that were packed, of so many pairs, if that is known."""
    counts = packed[: _COUNT * _blocks(size)].view(np.uint32).astype(np.int64)
    if pairs is None or not isinstance(packed, TensorArray):
        pairs = int(counts.sum(0))
    head, middle, end = _bounds(size, pairs, dtype)
    starts = _starts(counts, pairs)
    return starts + packed[middle:end].view(np.uint16), packed[head:middle].view(dtype)


def _starts(counts: Array, pairs: int) -> Array:
    """Return for each of the pairs the first index that its block may have."""
    xp = array_module(counts)
    starts = xp.arange(counts.size) << _BITS
    if isinstance(counts, TensorArray):  # which cannot be listed without a wait for the GPU
        return tensors.repeated(starts, counts, pairs)
    return xp.repeat(starts, counts.tolist())


def _bounds(size: int, count: int, dtype: np.dtype[Any]) -> tuple[int, int, int]:
    head = _COUNT * _blocks(size)
    middle = head + count * dtype.itemsize
    return head, middle, middle + 2 * count


def _blocks(size: int) -> int:
    return -(-size >> _BITS)
