"""Defines compressors that send few bits of every element: 1, or 8."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from torsh_runtime.compression.arrays import Array, array_module, pieces, seed_of
from torsh_runtime.compression.base import Compressor, Turn
from torsh_runtime.compression.wire import Wire
from torsh_runtime.errors import ConfigError

_SCALE = 4
"""Bytes of a row's scale, a float32."""
_ALIGNED = 32
_FEW = 2
"""Number of ranks up to which each sends all its codes to all: they then encode once."""


class _Quantised(Compressor):
    """Rows of elements, each sent as a scale and codes.

    Up to two ranks gather all codes. Among more, rank r gets the codes of the r-th part of
    all ranks' rows, averages them in order of rank, and sends the codes of the average to all (Tang
    et al., ICML 2019): as many bytes with any number of ranks. What the second coding loses, rank r
    adds to its own residual.
    """

    def __init__(self, block: int, error_feedback: bool, seed: int) -> None:
        super().__init__(error_feedback)
        if block < _ALIGNED:
            raise ConfigError(f"block={block!r} is not at least {_ALIGNED}")
        self.block, self.seed = block, seed

    def _exchange(self, turn: Turn, pending: Array, out: Array) -> None:
        xp, wire = array_module(pending), turn.wire
        ranks, rank, size = wire.world_size, wire.rank, pending.size
        per_rank, width = _rows(size, ranks, self.block)
        draw = xp.random.default_rng(seed_of(self.seed, turn.step, turn.bucket.index(), rank))
        rows = xp.zeros((ranks * per_rank, width), pending.dtype)
        rows.reshape(-1)[:size] = pending
        filled = (size - width * xp.arange(len(rows))).clip(0, width)[:, None]

        codes = self._encode_all(rows, filled, draw)
        if self.error_feedback:
            self._add(codes, rows, -1)
        if ranks <= _FEW:
            sent, divisor = wire.all_gather(codes), ranks
        else:
            sent, divisor = self._coded_again(codes, rows, filled, size, wire, draw), 1
        if self.error_feedback:
            pending[...] = rows.reshape(-1)[:size]
        rows[...] = 0
        for each in sent:
            self._add(each, rows, 1)
        rows /= divisor
        out[...] = rows.reshape(-1)[:size]

    def _coded_again(
        self, codes: Array, rows: Array, filled: Array, size: int, wire: Wire, draw: Any
    ) -> Array:
        """Return the codes of the average of `size` elements, (1, rows, bytes of each).

        The error of encoding it is added to this rank's part of the rows.
        """
        ranks, per_rank = wire.world_size, len(rows) // wire.world_size
        own = slice(wire.rank * per_rank, (wire.rank + 1) * per_rank)
        mean = array_module(rows).zeros((per_rank, rows.shape[1]), rows.dtype)
        for part in wire.all_to_all(codes).reshape(ranks, per_rank, -1):
            self._add(part, mean, 1)
        mean /= ranks
        first = own.start * rows.shape[1]
        mean.reshape(-1)[max(size - first, 0) :] = 0
        again = self._encode_all(mean, filled[own], draw)
        if self.error_feedback:
            self._add(again, mean, -1)
            rows[own] += mean * ranks
        return wire.all_gather(again).reshape(1, len(rows), -1)

    def _encode_all(self, rows: Array, filled: Array, draw: Any) -> Array:
        """Encode rows as uint8, (rows, bytes of each). `filled`, (rows, 1), counts elements
        before padding."""
        xp = array_module(rows)
        codes = xp.empty((len(rows), _SCALE + self._code_bytes(rows.shape[1])), np.uint8)
        for piece in pieces(rows):
            scales, found = self._encode(rows[piece], filled[piece], draw)
            codes[piece, :_SCALE] = scales.astype(np.float32).view(np.uint8)
            codes[piece, _SCALE:] = found
        return codes

    def _add(self, codes: Array, rows: Array, sign: int) -> None:
        """Add `sign` times the values of the codes to the rows."""
        xp = array_module(rows)
        for piece in pieces(rows):
            scales = xp.ascontiguousarray(codes[piece, :_SCALE]).view(np.float32)
            rows[piece] += self._decode(codes[piece, _SCALE:], rows.dtype) * (sign * scales)

    @abstractmethod
    def _code_bytes(self, width: int) -> int:
        """Return the bytes for the codes of a row of `width` elements."""

    @abstractmethod
    def _encode(self, rows: Array, filled: Array, draw: Any) -> tuple[Array, Array]:
        """Return the rows' scales, (rows, 1), and their codes, uint8 (rows, bytes)."""

    @abstractmethod
    def _decode(self, codes: Array, dtype: np.dtype[Any]) -> Array:
        """Return the values of the codes, which are to be multiplied by the scale."""


class OneBit(_Quantised):
    """Sends signs, and for each block of elements their mean magnitude: a 32nd of the bytes.

    See 1-bit SGD, Seide et al., Interspeech 2014; scaled signs with error feedback, Karimireddy et
    al., ICML 2019. Small blocks are nearer to each step's gradient, and models learn less by them.

    Example:
        ```python
        model = tr.DistributedDataParallel(model, gradient_compression=tr.compression.OneBit())
        ```
    """

    def __init__(self, block: int = 1 << 18, error_feedback: bool = True) -> None:
        """Create the compressor.

        Args:
            block: The number of elements of a block, at least 32.
            error_feedback: Whether to add what was lost to the next step's gradient.

        Raises:
            ConfigError: If `block` is too small.
        """
        super().__init__(block, error_feedback, seed=0)

    def _code_bytes(self, width: int) -> int:
        return width // 8

    def _encode(self, rows: Array, filled: Array, draw: Any) -> tuple[Array, Array]:
        xp = array_module(rows)
        scales = xp.abs(rows).sum(axis=1, keepdims=True) / xp.maximum(filled, 1)
        return scales, xp.packbits(rows >= 0).reshape(len(rows), -1)

    def _decode(self, codes: Array, dtype: np.dtype[Any]) -> Array:
        xp = array_module(codes)
        signs = xp.unpackbits(codes.reshape(-1)).reshape(len(codes), -1).astype(dtype)
        signs *= 2
        signs -= 1
        return signs


class Int8(_Quantised):
    """Sends each element as one byte, a multiple of its block's largest magnitude.

    There are 2 levels + 1 multiples. They are rounded up or down by chance, so the result is
    unbiased (QSGD, Alistarh et al., NeurIPS 2017, with a scale for each block of elements). It
    takes a quarter of the bytes.

    Example:
        ```python
        model = tr.DistributedDataParallel(model, gradient_compression=tr.compression.Int8())
        ```
    """

    def __init__(
        self, levels: int = 127, block: int = 1024, error_feedback: bool = False, seed: int = 0
    ) -> None:
        """Create the compressor.

        Args:
            levels: The number of positive multiples, from 1 to 127.
            block: The number of elements of a block, at least 32.
            error_feedback: Whether to add what was lost to the next step's gradient.
            seed: The seed of the chances, which differ from rank to rank and step to step.

        Raises:
            ConfigError: If `levels` or `block` is out of range.
        """
        super().__init__(block, error_feedback, seed)
        if not 1 <= levels <= 127:
            raise ConfigError(f"levels={levels!r} is not from 1 to 127")
        self.levels = levels

    def _code_bytes(self, width: int) -> int:
        return width

    def _encode(self, rows: Array, filled: Array, draw: Any) -> tuple[Array, Array]:
        xp = array_module(rows)
        scales = xp.abs(rows).max(axis=1, keepdims=True) / self.levels
        steps = rows * xp.where(scales > 0, 1 / scales, 0)
        steps += draw.random(rows.shape, dtype=np.float32)
        xp.floor(steps, out=steps)
        xp.minimum(steps, self.levels, out=steps)
        return scales, steps.astype(np.int8).view(np.uint8)

    def _decode(self, codes: Array, dtype: np.dtype[Any]) -> Array:
        return codes.view(np.int8).astype(dtype)


def _rows(size: int, ranks: int, block: int) -> tuple[int, int]:
    """Return the number of rows per rank, and the number of elements per row.

    Rows have about `block` elements at most.
    """
    part = -(-size // ranks)
    rows = -(-part // block)
    width = -(-part // rows)
    return rows, -(-width // _ALIGNED) * _ALIGNED
