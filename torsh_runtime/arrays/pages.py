"""Pages of memory that several processes have."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

from numpy.typing import NDArray


def give_back(array: NDArray[Any]) -> None:
    """Give the whole pages of a contiguous array in a shared mapping to the system, for all who
    have them; what is written there later gets new ones. OSError where the system refuses it, as
    for memory that is locked."""
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
