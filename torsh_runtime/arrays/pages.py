"""Pages of memory that several processes share."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

from numpy.typing import NDArray


def give_back(array: NDArray[Any]) -> None:
    """Return the whole pages of a contiguous array in a shared mapping to the system.

    All processes that share them lose their contents; later writes get new pages. Raises OSError
    where the system refuses it, such as for locked memory."""
    start = array.__array_interface__["data"][0]
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if array.nbytes and first < end and _madvise()(first, end - first, mmap.MADV_REMOVE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _madvise() -> Any:
    found = ctypes.CDLL(None, use_errno=True).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found
