"""Arrays in this process's memory: numpy arrays, other buffers, torch CPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.enumerations import DTYPES

Finish = Callable[[], None]
_REQUIRED: tuple[Literal["C_CONTIGUOUS"], Literal["ALIGNED"]] = ("C_CONTIGUOUS", "ALIGNED")


def stage(array: object, writable: bool) -> tuple[NDArray[Any], Finish | None]:
    """Return a C-contiguous, aligned array of the same elements, and a function to copy it back.

    If `array` itself is contiguous and aligned, the result is a view of its memory, and the
    function is None; it is also None unless `writable`. The dtype may be one that can only be moved
    (is_known). Raises TypeError for a type or dtype that collectives do not accept, ValueError for
    a read-only array where a writable one is needed.
    """
    source = _host_view(array)
    _check(source, writable)
    if source.flags.c_contiguous and source.flags.aligned:
        return source, None
    copy = np.require(source, requirements=_REQUIRED)
    if not writable or np.may_share_memory(copy, source):
        return copy, None
    return copy, lambda: np.copyto(source, copy)


@contextmanager
def staged(array: object, *, writable: bool) -> Iterator[NDArray[Any]]:
    """Call stage() for the duration of a block, and copy back if it ends without an error."""
    copy, finish = stage(array, writable)
    yield copy
    if finish is not None:
        finish()


def _host_view(array: object) -> NDArray[Any]:
    if isinstance(array, np.ndarray):
        return array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        from torsh_runtime.arrays.torch import host_view

        return host_view(array)
    try:
        return np.asarray(memoryview(array))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"collectives on CPUs take numpy arrays, other buffers and torch CPU tensors, not "
            f"{type(array).__module__}.{type(array).__name__}"
        ) from None


@lru_cache(maxsize=256)
def is_known(dtype: np.dtype[Any]) -> bool:
    """Return whether elements of the dtype can be reduced; others are moved as bytes."""
    return dtype.isnative and dtype.name in DTYPES


def _check(view: NDArray[Any], writable: bool) -> None:
    if view.dtype.hasobject or not view.dtype.itemsize:
        raise TypeError(
            f"arrays of dtype {view.dtype} have no contents of their own that could be moved; use "
            f"numbers or another dtype of fixed size, or the functions for Python objects"
        )
    if writable and not view.flags.writeable:
        raise ValueError("the array is read-only, and the result is written into it; pass a copy")
