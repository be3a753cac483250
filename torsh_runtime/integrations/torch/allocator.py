"""glibc's allocator, told to keep large blocks, and torch's, to have them in huge pages.

As it comes, glibc returns each freed gradient or activation to the kernel, which clears the pages
anew for the next one: on CPUs these page faults are the largest cost of many training steps. Where
the kernel gives huge pages to those who ask (madvise), torch asks if it is told to before it makes
its first tensor.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_LARGEST = (1 << 31) - 1
_PAD_BYTES = 256 << 20
SWITCH = "TORSH_TUNE_ALLOCATOR"
"""The environment variable that turns the tuning off: 0."""
_HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # torch's; read once


@cache
def tune_allocator() -> bool:
    """Let the process keep the memory it frees, once; whether that was done.

    Nothing is done when TORSH_TUNE_ALLOCATOR is 0, with another C library than glibc, and when
    glibc was tuned through the environment (MALLOC_*_ or GLIBC_TUNABLES): that is for the user.
    """
    if os.environ.get(SWITCH) == "0" or _is_tuned(os.environ):
        return False
    mallopt = _mallopt()
    if mallopt is None:
        return False
    settings = (
        (_MMAP_THRESHOLD, _LARGEST),
        (_TRIM_THRESHOLD, _LARGEST),
        (_TOP_PAD, _PAD_BYTES),
    )
    os.environ.setdefault(_HUGE_PAGES, "1")
    return all(mallopt(name, value) for name, value in settings)


def give_freed_memory_back() -> None:
    """Give the kernel what the process has freed and kept, as a tuned allocator does for ever."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def _is_tuned(environ: os._Environ[str]) -> bool:
    variables = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
    return any(name in environ for name in variables) or "glibc.malloc" in environ.get(
        "GLIBC_TUNABLES", ""
    )


def _mallopt() -> ctypes._FuncPointer | None:
    """glibc's mallopt; None with musl, which has no such function, or another library."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    return library.mallopt
