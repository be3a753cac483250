"""Handles files in safetensors' format (https://github.com/huggingface/safetensors#format).

A file has the length of a header, the header in JSON, which gives the place of each tensor, and the
tensors' bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torsh_runtime.errors import CheckpointError

ITEMSIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8,
}  # fmt: skip
"""Bytes per element, by the dtype's name in numpy, torch and ml_dtypes."""
FLOATING = {"float16", "bfloat16", "float32", "float64"}
"""Dtypes that are cast to each other on loading, as torch does."""
_CODES = {
    "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bfloat16": "BF16",
    "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
_LONGEST_HEADER = 100 << 20
"""The limit in bytes that the format's own readers have."""
_MOST_DIMENSIONS = 64
_MOST_BYTES = (1 << 63) - 1
"""Limits of arrays in numpy and torch, which also hold if another dimension is 0."""


class Stored(NamedTuple):
    """Describes where a tensor is stored in a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte from the beginning of the file."""

    @property
    def num_bytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return math.prod(self.shape) * ITEMSIZES[self.dtype]


def check_shape(shape: Sequence[int], dtype: str) -> None:
    """Raise ValueError for a shape that no array can have, even if it has no elements."""
    size = math.prod(each for each in shape if each) * ITEMSIZES[dtype]
    if len(shape) > _MOST_DIMENSIONS or size > _MOST_BYTES:
        raise ValueError(f"no array can be of shape {list(shape)}")


def check_dtype(name: str, dtype: str) -> None:
    """Raise CheckpointError for a dtype that the format does not have."""
    if dtype not in ITEMSIZES:
        raise CheckpointError(
            f"{name!r} is of dtype {dtype}, which safetensors files do not support; they support "
            f"{', '.join(ITEMSIZES)}"
        )


def lay_out(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, Stored], int]:
    """Lay out a file for tensors of these names, dtypes and shapes.

    Returns the bytes at the beginning of the file, the place of each tensor, and the file's size in
    bytes. Each tensor begins at a multiple of its element size. Raises CheckpointError for names
    that are reserved or used twice.
    """
    spans: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    end = 0
    for name, dtype, shape in sorted(tensors, key=lambda each: -ITEMSIZES[each[1]]):
        if name == "__metadata__" or name in spans:
            raise CheckpointError(f"no tensor in a safetensors file can be named {name!r}")
        size = math.prod(shape) * ITEMSIZES[dtype]
        spans[name] = dtype, shape, end, end + size
        end += size
    header = {
        "__metadata__": dict(metadata),
        **{
            name: {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [first, last]}
            for name, (dtype, shape, first, last) in spans.items()
        },
    }
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    start = 8 + len(text)
    stored = {name: Stored(*each[:2], start + each[2]) for name, each in spans.items()}
    return struct.pack("<Q", len(text)) + text, stored, start + end


def read_header(read: Any, size: int) -> dict[str, Stored]:
    """Return the place of each tensor in a file of `size` bytes.

    read: called as read(start, length), returns these bytes of the file.

    Raises CheckpointError if the file does not have the format.
    """
    try:
        (length,) = struct.unpack("<Q", read(0, 8))
        if length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(read(8, length))
        found = {}
        for name, each in header.items():
            if name != "__metadata__":
                found[name] = _stored(name, each, 8 + length, size)
        _check_apart(found)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise CheckpointError(f"it is no safetensors file: {error!r}") from None
    return found


def _stored(name: str, told: Any, start: int, size: int) -> Stored:
    first, last = told["data_offsets"]
    shape = tuple(told["shape"])
    if not all(type(each) is int and each >= 0 for each in (*shape, first, last)):
        raise ValueError(f"{name!r} has sizes that are none")
    stored = Stored(_NAMES[told["dtype"]], shape, start + first)
    check_shape(shape, stored.dtype)
    if last - first != stored.num_bytes or start + last > size:
        raise ValueError(f"{name!r} does not lie in the file")
    return stored


def _check_apart(found: Mapping[str, Stored]) -> None:
    """Raise ValueError if tensors have bytes in common, which the format forbids."""
    end, before = 0, ""
    for name, each in sorted(found.items(), key=lambda pair: pair[1].start):
        if each.num_bytes:
            if each.start < end:
                raise ValueError(f"{before!r} and {name!r} have bytes in common")
            end, before = each.start + each.num_bytes, name
