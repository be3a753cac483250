"""Arrays as the backends want them: C-contiguous, native byte order, of a supported dtype."""

from torsh_runtime.arrays.numpy import (
    SUPPORTED_DTYPES,
    check_alike,
    distribute,
    joined,
    room_for,
    staged,
)

__all__ = ["SUPPORTED_DTYPES", "check_alike", "distribute", "joined", "room_for", "staged"]
