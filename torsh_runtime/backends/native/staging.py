"""Arrays as the bindings take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays import is_known, stage
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.enumerations import DTYPES

_BFLOAT16 = DTYPES.index("bfloat16")
_UINT8 = DTYPES.index("uint8")


def stage_native(array: object, writable: bool) -> tuple[Any, Callable[[], None] | None]:
    """Stage an array for the bindings, as arrays.stage() does.

    The bindings cannot see bfloat16 in a buffer. Of a dtype that is only moved they see the bytes
    and its name.
    """
    copy, finish = stage(array, writable)
    if not is_known(copy.dtype):
        return _native.Typed(_as_bytes(copy), _UINT8, str(copy.dtype)), finish
    if copy.dtype.name == "bfloat16":
        return _native.Typed(copy.view(np.uint16), _BFLOAT16), finish
    return copy, finish


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a contiguous array's memory with one more dimension: the bytes of an element."""
    return array.reshape((*array.shape, 1)).view(np.uint8)
