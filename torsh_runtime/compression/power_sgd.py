"""Compresses gradients by low-rank approximation (PowerSGD, Vogels et al., NeurIPS 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.compression.arrays import Array, array_module, half_dtype, pieces, seed_of
from torsh_runtime.compression.base import Compressor, Turn
from torsh_runtime.compression.residuals import Residuals, spans
from torsh_runtime.compression.tensors import TensorArray
from torsh_runtime.compression.wire import Wire
from torsh_runtime.errors import ConfigError

_LOST = 1e-5
"""A column with less than this part left after orthogonalisation holds only rounding errors."""


class _Matrix(NamedTuple):
    """Describes a gradient of two or more dimensions as a matrix: the first one by all others."""

    name: str
    span: slice
    rows: int
    columns: int
    rank: int


class PowerSGD(Compressor):
    """Sends each matrix M as two thin matrices P and Q, of which M is about PQᵀ.

    P = MQ is averaged and orthogonalised, then Q = MᵀP is averaged.

    Example:
        ```python
        compressor = tr.compression.PowerSGD(rank=4, start_iteration=100)
        model = tr.DistributedDataParallel(model, gradient_compression=compressor)
        ```
    """

    def __init__(
        self,
        rank: int = 4,
        warm_start: bool = True,
        start_iteration: int = 0,
        min_compression_rate: float = 2.0,
        values: str | None = None,
        error_feedback: bool = True,
        seed: int = 0,
    ) -> None:
        """Create the compressor.

        Args:
            rank: The number of columns of P and Q, fewer where the matrix has fewer.
            warm_start: Whether to begin with the last step's Q.
            start_iteration: The number of first steps that are averaged exactly.
            min_compression_rate: A gradient is sent unchanged, as are those of one dimension,
                unless P and Q are smaller by this factor.
            values: The dtype in which everything is sent, "float16" or "bfloat16"; None is the
                dtype of the computation.
            error_feedback: Whether to add what was lost to the next step's gradient.
            seed: The seed of the first Q, equal on all ranks.

        Raises:
            ConfigError: For a rank below 1, and for unknown `values`.
        """
        super().__init__(error_feedback)
        if rank < 1:
            raise ConfigError(f"rank={rank!r} is not at least 1")
        self.rank, self.warm_start, self.start_iteration = rank, warm_start, start_iteration
        self.min_compression_rate, self.values, self.seed = min_compression_rate, values, seed
        self._value_dtype = None if values is None else half_dtype(values)
        self._q = Residuals()
        self._drawn: dict[str, Array] = {}
        """For tensors what takes the place of lost columns, equal on all ranks in any step."""

    def _shared(self) -> dict[str, Residuals]:
        return {"q": self._q}

    def _exchange(self, turn: Turn, pending: Array, out: Array) -> None:
        matrices, exact = self._split(turn)
        gradients = [pending[m.span].reshape(m.rows, m.columns) for m in matrices]
        kind = self._value_dtype if matrices and self._value_dtype else pending.dtype
        starts = [self._start(m, turn, pending) for m in matrices]

        first, ps = _matrices(pending, [(m.rows, m.rank) for m in matrices], _size(exact))
        _multiply(gradients, starts, ps)
        _pack(pending, exact, first)
        _round(first, kind)
        _take_away(pending, exact, first)
        _average(turn.wire, first, kind)
        _unpack(first, exact, out)
        _orthogonalise_alike(first, ps)

        second, qs = _matrices(pending, [(m.columns, m.rank) for m in matrices])
        _multiply([gradient.T for gradient in gradients], ps, qs)
        _round(second, kind)
        if self.error_feedback:
            for gradient, p, q in zip(gradients, ps, qs, strict=True):
                for piece in pieces(gradient):
                    gradient[piece] -= p[piece] @ q.T
        if matrices:
            _average(turn.wire, second, kind)
        products = [out[m.span].reshape(m.rows, m.columns) for m in matrices]
        _multiply(ps, [q.T for q in qs], products)
        if self.warm_start:
            self._q.arrays.update({m.name: q for m, q in zip(matrices, qs, strict=True)})

    def _split(self, turn: Turn) -> tuple[list[_Matrix], list[slice]]:
        """Return the matrices to approximate, equal shapes together, and the places sent
        exactly."""
        matrices, exact = [], []
        for name, shape, span in spans(turn.bucket):
            size = math.prod(shape)
            rows = shape[0] if len(shape) > 1 else 1
            columns = size // max(rows, 1)
            rank = min(self.rank, rows, columns)
            sent = (rows + columns) * rank * self.min_compression_rate
            if len(shape) > 1 and sent < size and turn.step >= self.start_iteration:
                matrices.append(_Matrix(name, span, rows, columns, rank))
            else:
                exact.append(span)
        return sorted(matrices, key=lambda m: m[2:]), exact

    def _start(self, matrix: _Matrix, turn: Turn, like: Array) -> Array:
        """Return the initial Q, with elements of magnitude 1 at most so that P is no larger than
        the matrix.

        Columns that are zero or not finite are drawn anew.
        """
        xp, shape = array_module(like), (matrix.columns, matrix.rank)
        q = self._q.arrays.get(matrix.name)
        is_kept = q is not None and q.shape == shape
        q = xp.asarray(q) if is_kept else xp.zeros(shape, like.dtype)
        lost = ~(xp.isfinite(q).all(axis=0) & q.any(axis=0))
        if isinstance(lost, TensorArray):  # whether any are would make the processor wait
            q = xp.where(lost, self._new_columns(matrix, turn.step, like, is_kept), q)
        elif lost.any():
            q = xp.where(lost, xp.asarray(self._draw(matrix, turn.step)), q)
        return (q / xp.abs(q).max(axis=0)).astype(like.dtype)

    def _draw(self, matrix: _Matrix, step: int) -> np.ndarray[Any, Any]:
        draw = np.random.default_rng(seed_of(self.seed, step, matrix.name))
        return draw.standard_normal((matrix.columns, matrix.rank))

    def _new_columns(self, matrix: _Matrix, step: int, like: Array, is_kept: bool) -> Array:
        """Return columns for a Q on a GPU: this step's, or those of step 0 where it has some.

        These are drawn once only. Ranks that have begun at different steps have the same.
        """
        xp = array_module(like)
        if not is_kept:
            return xp.asarray(self._draw(matrix, step))
        drawn = self._drawn.get(matrix.name)
        if drawn is None or drawn.shape != (matrix.columns, matrix.rank):
            drawn = xp.asarray(self._draw(matrix, 0)).astype(like.dtype)
            self._drawn[matrix.name] = drawn
        return drawn


def _size(places: Sequence[slice]) -> int:
    return sum(place.stop - place.start for place in places)


def _matrices(
    like: Array, shapes: Sequence[tuple[int, int]], more: int = 0
) -> tuple[Array, list[Array]]:
    """Return a flat array for matrices of these shapes and `more` elements, and the matrices."""
    ends = list(accumulate(map(math.prod, shapes), initial=0))
    flat = array_module(like).empty(ends[-1] + more, like.dtype)
    spans = zip(shapes, pairwise(ends), strict=True)
    return flat, [flat[begin:end].reshape(shape) for shape, (begin, end) in spans]


def _multiply(lefts: Sequence[Array], rights: Sequence[Array], products: Sequence[Array]) -> None:
    for left, right, product in zip(lefts, rights, products, strict=True):
        array_module(left).matmul(left, right, out=product)


def _pack(values: Array, exact: Sequence[slice], flat: Array) -> None:
    """Copy the exactly sent elements to the end of the flat array."""
    for at, place in _at_the_end(flat, exact):
        flat[at] = values[place]


def _unpack(flat: Array, exact: Sequence[slice], values: Array) -> None:
    """Copy the exactly sent elements back."""
    for at, place in _at_the_end(flat, exact):
        values[place] = flat[at]


def _take_away(values: Array, exact: Sequence[slice], flat: Array) -> None:
    """Subtract what the flat array has from the exactly sent elements, leaving the rounding
    error."""
    for at, place in _at_the_end(flat, exact):
        values[place] -= flat[at]


def _at_the_end(flat: Array, exact: Sequence[slice]) -> Iterator[tuple[slice, slice]]:
    """Yield where the flat array has the exactly sent elements, and where they come from."""
    begin = flat.size - _size(exact)
    for place in exact:
        yield slice(begin, begin := begin + place.stop - place.start), place


def _round(flat: Array, kind: np.dtype[Any]) -> None:
    """Round the array to values that the dtype can represent."""
    if flat.dtype != kind:
        flat[...] = flat.astype(kind)


def _average(wire: Wire, flat: Array, kind: np.dtype[Any]) -> None:
    """Average the array in place over all ranks, sent in this dtype."""
    sent = flat.astype(kind, copy=False)
    wire.average(sent)
    if sent is not flat:
        flat[...] = sent


def _orthogonalise_alike(flat: Array, matrices: Sequence[Array]) -> None:
    """Make the columns of each matrix orthogonal.

    Matrices of one shape are contiguous from the flat array's beginning and are processed together.
    """
    begin = 0
    for (rows, columns), alike in groupby(matrix.shape for matrix in matrices):
        end = begin + len(list(alike)) * rows * columns
        _orthogonalise(flat[begin:end].reshape(-1, rows, columns))
        begin = end


def _orthogonalise(matrices: Array) -> None:
    """Make columns orthogonal in place by Gram–Schmidt; the shape is (matrices, rows, columns).

    A column that depends on earlier ones becomes zero.
    """
    xp = array_module(matrices)
    lengths = xp.linalg.norm(matrices, axis=1, keepdims=True)
    for i in range(matrices.shape[2]):
        column = matrices[:, :, i : i + 1]
        length = xp.linalg.norm(column, axis=1, keepdims=True)
        is_left = ~(length <= _LOST * lengths[:, :, i : i + 1])
        column *= xp.where(is_left, 1 / xp.where(is_left, length, 1), 0)
        rest = matrices[:, :, i + 1 :]
        rest -= column * (column * rest).sum(axis=1, keepdims=True)
