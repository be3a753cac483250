"""Defines compressors that send some elements: the largest, random ones, or those above a
threshold."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from torsh_runtime.compression.arrays import Array, array_module, nan_unless_finite, seed_of
from torsh_runtime.compression.base import Compressor, Turn
from torsh_runtime.compression.pairs import pack, unpack, value_dtype
from torsh_runtime.compression.selection import at_least, largest
from torsh_runtime.compression.wire import Wire
from torsh_runtime.errors import ConfigError


class _Share:
    """Determines how many elements of a bucket are sent: a ratio of them, or the number k.

    Raises ConfigError for invalid values.
    """

    def __init__(self, ratio: float, k: int | None) -> None:
        if not 0 < ratio <= 1:
            raise ConfigError(f"ratio={ratio!r} is not above 0 and at most 1")
        if k is not None and k < 1:
            raise ConfigError(f"k={k!r} is not at least 1")
        self.ratio, self.k = ratio if k is None else None, k

    def _count(self, turn: Turn, size: int) -> int:
        ratio = turn.ratio or self.ratio or 0.0
        return min(max(round(ratio * size), self.k or 1), size)


class _Gathered(Compressor):
    """Gathers all ranks' pairs of index and value, and adds them in order of rank."""

    def __init__(self, values: str, error_feedback: bool) -> None:
        super().__init__(error_feedback)
        self.values = values
        self._value_dtype = value_dtype(values)

    def _exchange(self, turn: Turn, pending: Array, out: Array) -> Array:
        indices = self._select(turn, pending)
        values = pending[indices].astype(self._value_dtype)
        pending[indices] -= values.astype(pending.dtype)
        payload = pack(indices, values, pending.size)
        out[...] = 0
        for other in self._gather(turn.wire, payload):
            where, what = unpack(other, pending.size, self._value_dtype, self._sent(turn, pending))
            out[where] += what.astype(out.dtype) / turn.wire.world_size
        return indices

    @abstractmethod
    def _select(self, turn: Turn, pending: Array) -> Array:
        """Return the ascending indices of the elements to send."""

    def _gather(self, wire: Wire, payload: Array) -> Array | list[Array]:
        return wire.all_gather(payload)

    def _sent(self, turn: Turn, pending: Array) -> int | None:
        """Return how many pairs each rank sends; None if that differs."""
        return None


class TopK(_Share, _Gathered):
    """Sends the elements of each bucket that are largest in magnitude.

    See Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018. Each takes 6 bytes, or 4 with
    values in half precision.

    Example:
        ```python
        compressor = tr.compression.TopK(ratio=0.01)
        model = tr.DistributedDataParallel(model, gradient_compression=compressor)
        ```
    """

    def __init__(
        self,
        ratio: float = 0.01,
        k: int | None = None,
        values: str = "float32",
        error_feedback: bool = True,
    ) -> None:
        """Create the compressor.

        Args:
            ratio: The part of each bucket that is sent, above 0 and at most 1.
            k: The number of elements of each bucket, instead of `ratio`.
            values: The dtype in which they are sent: "float32", "float16" or "bfloat16".
            error_feedback: Whether to add what was not sent to the next step's gradient.

        Raises:
            ConfigError: For values out of range.
        """
        _Gathered.__init__(self, values, error_feedback)
        _Share.__init__(self, ratio, k)

    def _select(self, turn: Turn, pending: Array) -> Array:
        return largest(pending, self._count(turn, pending.size))

    def _sent(self, turn: Turn, pending: Array) -> int:
        return self._count(turn, pending.size)


class Threshold(_Gathered):
    """Sends the elements that are at least `threshold` in magnitude.

    It is after Strom, Interspeech 2015. Ranks exchange the numbers of elements first.

    Example:
        ```python
        compressor = tr.compression.Threshold(1e-3)
        model = tr.DistributedDataParallel(model, gradient_compression=compressor)
        ```
    """

    def __init__(
        self, threshold: float = 1e-3, values: str = "float32", error_feedback: bool = True
    ) -> None:
        """Create the compressor.

        Args:
            threshold: The smallest magnitude that is sent, above 0.
            values: The dtype in which they are sent: "float32", "float16" or "bfloat16".
            error_feedback: Whether to add what was not sent to the next step's gradient.

        Raises:
            ConfigError: For values out of range.
        """
        super().__init__(values, error_feedback)
        if not threshold > 0:
            raise ConfigError(f"threshold={threshold!r} is not above 0")
        self.threshold = threshold

    def _select(self, turn: Turn, pending: Array) -> Array:
        return at_least(pending, self.threshold)

    def _gather(self, wire: Wire, payload: Array) -> list[Array]:
        return wire.all_gather_uneven(payload)


class RandomK(_Share, Compressor):
    """Sends elements that are drawn anew in each step, the same on all ranks.

    Their values alone are reduced (Stich et al., NeurIPS 2018): 4 bytes for each, with any number
    of ranks. Without error feedback what is sent is scaled up, and so unbiased (Wangni et al.,
    NeurIPS 2018).

    Example:
        ```python
        compressor = tr.compression.RandomK(ratio=0.01)
        model = tr.DistributedDataParallel(model, gradient_compression=compressor)
        ```
    """

    def __init__(
        self,
        ratio: float = 0.01,
        k: int | None = None,
        error_feedback: bool = True,
        seed: int = 0,
    ) -> None:
        """Create the compressor.

        Args:
            ratio: The part of each bucket that is sent, above 0 and at most 1.
            k: The number of elements of each bucket, instead of `ratio`.
            error_feedback: Whether to add what was not sent to the next step's gradient.
            seed: The seed of the draws, the same on all ranks.

        Raises:
            ConfigError: For values out of range.
        """
        Compressor.__init__(self, error_feedback)
        _Share.__init__(self, ratio, k)
        self.seed = seed

    def _exchange(self, turn: Turn, pending: Array, out: Array) -> Array:
        xp, size = array_module(pending), pending.size
        k = self._count(turn, size)
        draw = np.random.default_rng(seed_of(self.seed, turn.step, turn.bucket.index()))
        indices = xp.asarray(np.sort(draw.choice(size, k, replace=False, shuffle=False)))
        values = pending[indices].astype(np.float32)
        nan_unless_finite(values, pending)  # or one that is not finite might never be drawn
        pending[indices] -= values.astype(pending.dtype)
        if not self.error_feedback:
            values *= size / k
        turn.wire.average(values)
        out[...] = 0
        out[indices] = values
        return indices
