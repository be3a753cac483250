"""Tunes glibc's allocator to keep large blocks, and torch's to put them in huge pages.

By default glibc returns each freed gradient or activation to the kernel, which clears the pages
again for the next one. On CPUs these page faults are the largest cost of many training steps. If
the kernel gives huge pages on request (madvise), torch requests them if told so before it makes its
first tensor.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_LARGEST = (1 << 31) - 1
_PAD_BYTES = 256 << 20
SWITCH = "TORSH_TUNE_ALLOCATOR"
"""The environment variable that turns the tuning off if it is 0."""
_HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # torch reads it once


@cache
def tune_allocator() -> bool:
    """Let the process keep the memory that it frees, once, and return whether that was done.

    Nothing is done if TORSH_TUNE_ALLOCATOR is 0, with a C library other than glibc, or if the user
    has tuned glibc through the environment (MALLOC_*_ or GLIBC_TUNABLES).
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
    """Return freed memory to the kernel, which a tuned allocator would keep forever."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def _is_tuned(environ: os._Environ[str]) -> bool:
    variables = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
    return any(name in environ for name in variables) or "glibc.malloc" in environ.get(
        "GLIBC_TUNABLES", ""
    )


def _mallopt() -> ctypes._FuncPointer | None:
    """Return glibc's mallopt; None with musl, which lacks it, or another library."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    return library.mallopt
