"""Compresses gradients to half precision."""

from __future__ import annotations

from torsh_runtime.compression.arrays import Array, half_dtype
from torsh_runtime.compression.base import Compressor, Turn


class Cast(Compressor):
    """Reduces in "float16" or "bfloat16", with half the bytes of float32.

    Each rank divides by the number of ranks first, so that sums overflow no sooner than gradients.
    Values above float16's largest number become infinite. Error feedback corrects this rank's
    rounding, not that of sums.

    Raises:
        ConfigError: For a different dtype.

    Example:
        ```python
        half = tr.compression.Cast("bfloat16")
        model = tr.DistributedDataParallel(model, gradient_compression=half)
        ```
    """

    def __init__(self, dtype: str = "float16", error_feedback: bool = False) -> None:
        """Create the compressor.

        Args:
            dtype: "float16" or "bfloat16".
            error_feedback: Whether to add what was lost to the next step's gradient.
        """
        super().__init__(error_feedback)
        self.dtype = dtype
        self._half = half_dtype(dtype)

    def _exchange(self, turn: Turn, pending: Array, out: Array) -> None:
        ranks = turn.wire.world_size
        half = (pending / ranks).astype(self._half)
        if self.error_feedback:
            pending -= half.astype(pending.dtype) * ranks
        turn.wire.sum(half)
        out[...] = half
