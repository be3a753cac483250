"""Arrays as the backends want them: C-contiguous, native byte order, of a supported dtype."""

from torsh_runtime.arrays.numpy import SUPPORTED_DTYPES, empty_like_parts, staged

__all__ = ["SUPPORTED_DTYPES", "empty_like_parts", "staged"]
