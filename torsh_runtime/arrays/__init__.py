"""Arrays as the backends want them: C-contiguous, native byte order, of a supported dtype."""

from torsh_runtime.arrays.host import stage, staged

__all__ = ["stage", "staged"]
