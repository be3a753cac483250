"""Computes which rows and tokens of a batch a rank has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.context import context_positions, context_shard
from torsh_runtime.parallel.verification.place import Place
from torsh_runtime.parallel.verification.placing import DataCut, Span, within


@dataclass(frozen=True, slots=True)
class Share:
    """Holds which of a batch's rows, and which tokens of each row, this rank has."""

    place: Place
    rows: int
    tokens: int
    own_rows: Span
    own_tokens: tuple[Span, ...]

    def of(self, tensor: Any) -> Any:
        """Return this rank's part of a tensor: its rows along dimension 0, its tokens along
        dimension 1.
        """
        shape = getattr(tensor, "shape", ())
        if len(shape) and self.own_rows != (0, self.rows):
            tensor = tensor[slice(*self.own_rows)]
        if len(shape) > 1 and self._is_by_token:
            tensor = context_shard(tensor, self.place.mesh[self.place.token_axes[0]])
        return tensor

    def cuts(self, dim: int, size: int) -> Iterator[DataCut]:
        """Yield the indices of an output's dimension that this rank may have, the likeliest first.

        They follow from its share: rows, tokens, or both where a dimension has all tokens of all
        rows. `size` is the number of indices in the output of the whole batch.
        """
        first, last = self.own_rows
        if dim == 0 and size % (self.rows * self.tokens) == 0 and self._is_by_token:
            each = size // (self.rows * self.tokens)
            spans = tuple(
                ((row * self.tokens + start) * each, (row * self.tokens + end) * each)
                for row in range(first, last)
                for start, end in self.own_tokens
            )
            yield DataCut(spans, self.place.data_axes)
        if dim == 0 and size % self.rows == 0 and last - first < self.rows:
            each = size // self.rows
            yield DataCut(((first * each, last * each),), self.place.row_axes)
        if dim and size == self.tokens and self._is_by_token:
            yield DataCut(self.own_tokens, self.place.token_axes)
        yield DataCut(((0, size),), ())

    @property
    def scales(self) -> tuple[float, ...]:
        """Return by which factors an output of the whole batch may be longer than this rank's.

        Lengths are those of the first dimension: of rows, and of rows with all their tokens.
        """
        rows = self.rows / (self.own_rows[1] - self.own_rows[0])
        return rows, rows * self.tokens / within(self.own_tokens)

    @property
    def _is_by_token(self) -> bool:
        return within(self.own_tokens) != self.tokens


def share_of(inputs: tuple[Any, ...], place: Place) -> Share:
    """Return this rank's share of the whole model's inputs.

    Raises ConfigError for rows that cannot be divided evenly over the axes of the data.
    """
    shape = next((each.shape for each in inputs if getattr(each, "shape", ())), (1,))
    rows, ranks = int(shape[0]), place.size(place.row_axes)
    own, rest = divmod(rows, ranks)
    if rest:
        raise ConfigError(
            f"a batch of {rows} rows cannot be cut into {ranks} equal parts for the axes "
            f"{', '.join(place.row_axes)}"
        )
    first = place.number(place.row_axes) * own
    tokens = [*map(int, shape), 1][1]
    kept: tuple[Span, ...] = ((0, tokens),)
    if place.size(place.token_axes) > 1:
        positions = context_positions(tokens, place.mesh[place.token_axes[0]]).tolist()
        kept = tuple((at, at + 1) for at in positions)
    return Share(place, rows, tokens, (first, first + own), kept)
