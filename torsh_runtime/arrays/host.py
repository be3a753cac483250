"""Arrays in this process's memory: numpy arrays, other buffers, torch CPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.status import DTYPES

Finish = Callable[[], None]
_REQUIRED: tuple[Literal["C_CONTIGUOUS"], Literal["ALIGNED"]] = ("C_CONTIGUOUS", "ALIGNED")


def stage(array: object, writable: bool) -> tuple[NDArray[Any], Finish | None]:
    """A contiguous, aligned array of the same elements, and what copies it back to `array`.

    Where the array itself is contiguous it is looked at in place and there is nothing to copy
    back; nor is there unless `writable`. Raises TypeError for a type or dtype that collectives do
    not take, ValueError for a read-only array where a writable one is needed.
    """
    source = _host_view(array)
    _check(source, writable)
    copy = np.require(source, requirements=_REQUIRED)
    if not writable or np.may_share_memory(copy, source):
        return copy, None
    return copy, lambda: np.copyto(source, copy)


@contextmanager
def staged(array: object, *, writable: bool) -> Iterator[NDArray[Any]]:
    """stage() for the length of a block, which copies back if it ends without an error."""
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


def _check(view: NDArray[Any], writable: bool) -> None:
    if view.dtype.name not in DTYPES or not view.dtype.isnative:
        order = "" if view.dtype.isnative else " in foreign byte order"
        raise TypeError(
            f"dtype {view.dtype.name}{order} is not supported; use one of {', '.join(DTYPES)} "
            f"(array.astype(...) converts)"
        )
    if writable and not view.flags.writeable:
        raise ValueError("the array is read-only, and the result is written into it; pass a copy")
