"""Corrects momentum for compression (DGC, Lin et al., ICLR 2018)."""

from __future__ import annotations

from typing import Any

import numpy as np

from torsh_runtime.compression.arrays import Array, drop_what_is_not_finite, shortened
from torsh_runtime.compression.base import Compressor, Turn
from torsh_runtime.compression.residuals import Residuals
from torsh_runtime.errors import ConfigError

_FIRST_RATIO = 0.25


class MomentumCorrection(Compressor):
    """Adds momentum to each rank's own gradient and passes that to the compressor.

    The compressor's residual then holds velocities (section 3.2 of the paper). Use an optimizer
    without momentum. Momentum is reset for elements that were sent by their index (section 3.3).

    Example:
        ```python
        compressor = tr.compression.MomentumCorrection(tr.compression.TopK(0.001), warmup_steps=500)
        model = tr.DistributedDataParallel(model, gradient_compression=compressor)
        ```
    """

    def __init__(
        self,
        compressor: Compressor,
        momentum: float = 0.9,
        clip_norm: float | None = None,
        warmup_steps: int = 0,
    ) -> None:
        """Create the compressor.

        Args:
            compressor: A compressor with error feedback.
            momentum: The factor of the velocity, from 0 to below 1.
            clip_norm: The Euclidean norm to which gradients would be clipped without compression;
                each rank clips its bucket's to clip_norm / √ranks, since none has all gradients
                when the first bucket is sent. None: not at all.
            warmup_steps: The number of steps over which the compressor's ratio decreases from 0.25
                to its own, exponentially.

        Raises:
            ConfigError: For a compressor without error feedback, or without a ratio to warm up, and
                for a momentum out of range.
        """
        super().__init__(error_feedback=False)
        if not compressor.error_feedback:
            raise ConfigError(f"{compressor!r} forgets what it does not send: use error_feedback")
        if not 0 <= momentum < 1:
            raise ConfigError(f"momentum={momentum!r} is not from 0 to below 1")
        self._ratio: float | None = getattr(compressor, "ratio", None)
        if warmup_steps and self._ratio is None:
            raise ConfigError(f"{compressor!r} has no ratio to warm up: leave warmup_steps out")
        self.compressor, self.momentum = compressor, momentum
        self.clip_norm, self.warmup_steps = clip_norm, warmup_steps
        self._velocity = Residuals()

    def reduce(self, turn: Turn, dtype: np.dtype[Any]) -> Array | None:
        """Add momentum to the gradient, and let the compressor average the result.

        Args:
            turn: The bucket, its step and the group.
            dtype: The dtype of the computation.

        Returns:
            The indices that were sent; None if not sent by index.
        """
        array = turn.bucket.array
        gradient = self._clipped(array.astype(dtype), turn.wire.world_size)
        velocity = self._velocity.of(turn.bucket, dtype)
        velocity *= self.momentum
        velocity += gradient
        array[...] = velocity
        sent = self.compressor.reduce(turn._replace(ratio=self._ratio_at(turn.step)), dtype)
        if sent is not None:
            velocity[sent] = 0
        drop_what_is_not_finite(velocity)
        return sent

    def _clipped(self, gradient: Array, ranks: int) -> Array:
        if self.clip_norm is not None:
            return shortened(gradient, self.clip_norm / ranks**0.5)
        return gradient

    def _ratio_at(self, step: int) -> float | None:
        final = self._ratio
        if final is None or final >= _FIRST_RATIO or step >= self.warmup_steps:
            return final
        return float(_FIRST_RATIO * (final / _FIRST_RATIO) ** (step / self.warmup_steps))

    def _exchange(self, turn: Turn, pending: Array, out: Array) -> Array | None:
        raise NotImplementedError("reduce() has the compressor do it")

    def _own(self) -> dict[str, Residuals]:
        return {"velocity": self._velocity, **self.compressor._own()}

    def _shared(self) -> dict[str, Residuals]:
        return self.compressor._shared()
