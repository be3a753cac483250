"""numpy arrays, and whatever else offers the buffer protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUPPORTED_DTYPES = ("float32", "float64", "int32", "int64")


@contextmanager
def staged(array: object, *, writable: bool) -> Iterator[NDArray[Any]]:
    """A contiguous, aligned array of the same elements; what is written to it ends up in `array`.

    The array itself where it already is that, otherwise a copy that is written back when
    the block ends without an error. Raises TypeError for a type or dtype that collectives do not
    take, ValueError for a read-only array where a writable one is needed.
    """
    source = _checked(array, writable)
    copy = np.require(source, requirements=("C_CONTIGUOUS", "ALIGNED"))
    yield copy
    if writable and not np.may_share_memory(copy, source):
        source[...] = copy


def joined(parts: Sequence[object]) -> NDArray[Any]:
    """A new array of shape (len(parts), *shape) with copies of the parts."""
    return np.stack([_checked(part, False) for part in parts])


def distribute(source: NDArray[Any], targets: Sequence[object]) -> None:
    """Copy source[i] into targets[i], for each i."""
    for part, target in zip(source, targets, strict=True):
        _checked(target, True)[...] = part


def room_for(parts: Sequence[object]) -> NDArray[Any]:
    """An uninitialised array that `distribute` can copy into the parts."""
    first = _checked(parts[0], True)
    return np.empty((len(parts), *first.shape), first.dtype)


def check_alike(
    name: str, parts: Sequence[object], model: object, count: int, *, writable: bool
) -> None:
    """Raise ValueError unless `parts` are `count` arrays of the model's shape and dtype, and
    writable where asked for.
    """
    if len(parts) != count:
        raise ValueError(f"{name} has {len(parts)} arrays; it needs one per rank, {count}")
    wanted = _checked(model, False)
    for index, part in enumerate(parts):
        array = _checked(part, writable)
        if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"{name}[{index}] is {array.dtype.name}{list(array.shape)}, but the other array "
                f"is {wanted.dtype.name}{list(wanted.shape)}; they must be alike"
            )


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
