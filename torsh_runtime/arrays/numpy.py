"""numpy arrays, and whatever else offers the buffer protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUPPORTED_DTYPES = ("float32", "float64", "int32", "int64")


@contextmanager
def staged(array: object, *, writable: bool) -> Iterator[NDArray[Any]]:
    """A C-contiguous array with the same elements; what is written to it ends up in `array`.

    The array itself where it already is contiguous, otherwise a copy that is written back when
    the block ends without an error. Raises TypeError for a type or dtype that collectives do not
    take, ValueError for a read-only array where a writable one is needed.
    """
    source = _checked(array, writable)
    copy = np.array(source, order="C", copy=None, subok=False)
    yield copy
    if writable and not np.may_share_memory(copy, source):
        source[...] = copy


def empty_like_parts(array: object, parts: int) -> NDArray[Any]:
    """An uninitialised array of shape (parts, *array.shape) and array's dtype."""
    source = _checked(array, False)
    return np.empty((parts, *source.shape), source.dtype)


def _checked(array: object, writable: bool) -> NDArray[Any]:
    view = array if isinstance(array, np.ndarray) else _from_buffer(array)
    if view.dtype.name not in SUPPORTED_DTYPES or not view.dtype.isnative:
        order = "" if view.dtype.isnative else " in foreign byte order"
        raise TypeError(
            f"dtype {view.dtype.name}{order} is not supported; use one of "
            f"{', '.join(SUPPORTED_DTYPES)} (array.astype(...) converts)"
        )
    if writable and not view.flags.writeable:
        raise ValueError("the array is read-only, and the result is written into it; pass a copy")
    return view


def _from_buffer(array: object) -> NDArray[Any]:
    try:
        return np.asarray(memoryview(array))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"collectives take numpy arrays (or buffers) of {', '.join(SUPPORTED_DTYPES)}, "
            f"not {type(array).__name__}"
        ) from None
