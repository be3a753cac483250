"""Defines a piece of a tensor, and the overlap of two pieces.

Elements of a tensor are numbered in row-major order, the last dimension fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from torsh_runtime.errors import ConfigError


class Run(NamedTuple):
    """Represents elements that are contiguous both in the tensor and in a piece of it."""

    number: int
    """Number of the first element in the tensor."""
    at: int
    """Position of the first element in the piece."""
    length: int


class Overlap(NamedTuple):
    """Represents elements that two pieces share, contiguous in both."""

    ours: int
    """Position of the first element in the one piece."""
    theirs: int
    """Position of the first element in the other piece."""
    length: int


_NOT_BY_TORCH = (
    "{} is this rank's part of a tensor, which torch.distributed.checkpoint does not know: save "
    "with a tr.checkpoint.Checkpointer, whose checkpoints `python -m torsh_runtime.checkpoint "
    "export --format dcp` converts, or get whole tensors by full_state_dict=True"
)
Span = tuple[int, int]
"""Indices along a dimension: the first, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Represents elements `start` to `end` (exclusive) of a box, in row-major order.

    The box has size `shape` and begins at `offsets` in a tensor of shape `global_shape`. If there
    are several boxes with gaps in between, `spans` has the ascending indices along each dimension.

    Raises:
        ConfigError: If the piece is not within the tensor.

    Example:
        ```python
        piece = Piece.of_spans((8, 4), [[(0, 2)], [(0, 4)]])  # the first two rows
        piece.size, piece.is_box  # 8, True
        ```
    """

    global_shape: tuple[int, ...]
    """The shape of the tensor."""
    offsets: tuple[int, ...]
    """The index at which the box begins."""
    shape: tuple[int, ...]
    """The size of the box."""
    start: int
    """The number of the first element in the box."""
    end: int
    """The number after that of the last element."""
    spans: tuple[tuple[Span, ...], ...] = ()
    """Empty for one box. Create others with `of_spans`, so that equal pieces compare equal."""

    def __post_init__(self) -> None:
        sizes = (self.global_shape, self.offsets, self.shape)
        is_box = len({*map(len, sizes)}) == 1 and all(
            min(offset, size) >= 0 and offset + size <= whole
            for whole, offset, size in zip(*sizes, strict=True)
        )
        if self.spans:
            is_box = len(self.spans) == len(self.shape) and all(map(self._has, range(self._ndim)))
        if not is_box or not 0 <= self.start <= self.end <= math.prod(self.shape):
            raise ConfigError(
                f"elements {self.start} to {self.end} of a box {self.shape} at {self.offsets}"
                f"{f' in the spans {self.spans}' if self.spans else ''} are no piece of a tensor "
                f"of shape {self.global_shape}"
            )

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Piece:
        """Return the piece with all elements of a tensor of this shape."""
        return cls(shape, (0,) * len(shape), shape, 0, math.prod(shape))

    @classmethod
    def of_spans(cls, global_shape: tuple[int, ...], spans: Sequence[Sequence[Span]]) -> Piece:
        """Return all elements whose index along each dimension is in one of its spans.

        Args:
            global_shape: The shape of the tensor.
            spans: For each dimension its ranges (first, after the last), ascending.

        Raises:
            ConfigError: If these are not within the tensor.
        """
        joined = tuple(map(_joined, spans))
        offsets = tuple(own[0][0] for own in joined)
        shape = tuple(sum(last - first for first, last in own) for own in joined)
        kept = joined if any(len(own) > 1 for own in joined) else ()
        return cls(global_shape, offsets, shape, 0, math.prod(shape), kept)

    def part(self, first: int, last: int) -> Piece:
        """Return elements `first` to `last` (exclusive) of this piece.

        Raises:
            ConfigError: If the piece does not have these.
        """
        return replace(self, start=self.start + first, end=self.start + last)

    def spans_of(self, dim: int) -> tuple[Span, ...]:
        """Return the ranges of indices that the piece has along a dimension."""
        if self.spans:
            return self.spans[dim]
        return ((self.offsets[dim], self.offsets[dim] + self.shape[dim]),)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.end - self.start

    @property
    def is_box(self) -> bool:
        """Return whether the piece has all elements of its box."""
        return self.size == math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Return whether the piece has all elements of the tensor."""
        return self.size == math.prod(self.global_shape)

    @property
    def label(self) -> str:
        """Return text for the piece's elements that no other piece of the tensor has."""
        box = ",".join(
            "+".join(f"{first}:{last}" for first, last in self.spans_of(dim))
            for dim in range(len(self.shape))
        )
        return f"[{box}][{self.start}:{self.end}]"

    def runs(self) -> Iterator[Run]:
        """Yield the piece's elements as runs, by ascending number."""
        if not self.size:
            return
        solid = self._first_solid_dim()
        inner = math.prod(self.shape[solid + 1 :])
        length = math.prod(self.shape[solid:])
        spans = self.spans_of(solid) if self.shape else ((0, 1),)
        for row in range(self.start // length, (self.end - 1) // length + 1):
            number, at = self._number(self._row(row, solid)), row * length
            for first, last in spans:
                size = (last - first) * inner
                low, high = max(at, self.start), min(at + size, self.end)
                if low < high:
                    yield Run(number + first * inner + low - at, low - self.start, high - low)
                at += size

    def _row(self, row: int, solid: int) -> tuple[int, ...]:
        """Return the index in the tensor at which a row of the solid dimensions begins."""
        index = [0] * len(self.shape)
        for dim in reversed(range(solid)):
            row, at = divmod(row, self.shape[dim])
            index[dim] = self._index(dim, at)
        return tuple(index)

    def _index(self, dim: int, at: int) -> int:
        """Return the tensor's index of the piece's `at`-th index along a dimension."""
        for first, last in self.spans_of(dim):
            if at < last - first:
                return first + at
            at -= last - first
        raise IndexError(at)

    def _first_solid_dim(self) -> int:
        """Return the dimension after which the box has no gaps in the tensor."""
        dim = len(self.shape)
        while dim and self.shape[dim:] == self.global_shape[dim:]:
            dim -= 1
        return dim

    @property
    def _ndim(self) -> int:
        return len(self.global_shape)

    def _has(self, dim: int) -> bool:
        """Return whether the spans along a dimension ascend and match offsets and shape."""
        own = self.spans[dim]
        ends = [0, *(end for span in own for end in span), self.global_shape[dim]]
        size = sum(last - first for first, last in own)
        first = own[0][0] if own else -1
        return ends == sorted(ends) and (first, size) == (self.offsets[dim], self.shape[dim])

    def _number(self, index: tuple[int, ...]) -> int:
        number = 0
        for at, size in zip(index, self.global_shape, strict=True):
            number = number * size + at
        return number


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """Holds a rank's piece of a tensor, with its values.

    Example:
        ```python
        rows = ShardedTensor(np.zeros((2, 4)), Piece.of_spans((8, 4), [[(0, 2)], [(0, 4)]]))
        checkpointer.save(step, {"table": rows})
        ```
    """

    values: Any
    """An array or tensor of any shape with piece.size elements, in order."""
    piece: Piece
    """The elements that it has."""

    def __create_write_items__(self, fqn: str, _: object) -> NoReturn:
        """Refuse to be saved by torch.distributed.checkpoint, which would keep rank 0's only."""
        raise ConfigError(_NOT_BY_TORCH.format(fqn))

    def __create_chunk_list__(self) -> NoReturn:
        """Refuse to be loaded by torch.distributed.checkpoint."""
        raise ConfigError(_NOT_BY_TORCH.format("a ShardedTensor"))


def overlaps(ours: Piece, theirs: Piece) -> Iterator[Overlap]:
    """Yield the elements that two pieces of one tensor share, by ascending number.

    Args:
        ours: A piece.
        theirs: A piece.

    Raises:
        ConfigError: If their tensors differ in shape.
    """
    if ours.global_shape != theirs.global_shape:
        raise ConfigError(
            f"a piece of a tensor of shape {ours.global_shape} has nothing in common with one of "
            f"shape {theirs.global_shape}"
        )
    own, other = ours.runs(), theirs.runs()
    mine, its = next(own, None), next(other, None)
    while mine is not None and its is not None:
        start = max(mine.number, its.number)
        mine_end, its_end = mine.number + mine.length, its.number + its.length
        end = min(mine_end, its_end)
        if start < end:
            yield Overlap(mine.at + start - mine.number, its.at + start - its.number, end - start)
        if mine_end <= its_end:
            mine = next(own, None)
        else:
            its = next(other, None)


def cover(ours: Piece, others: Sequence[Piece]) -> Iterator[tuple[int, Overlap]]:
    """Yield where to find each element of a piece in other pieces, once, by ascending number.

    Args:
        ours: The piece.
        others: The other pieces.

    Yields:
        The index in `others` of a piece that has the elements, and the overlap with it.

    Raises:
        ConfigError: If no piece has an element, or if the tensors differ in shape.
    """
    if ours in others:
        if ours.size:
            yield others.index(ours), Overlap(0, 0, ours.size)
        return
    found = [
        (each, place)
        for place, other in enumerate(others)
        for each in (overlaps(ours, other) if ours.size and other.size else ())
    ]
    done = 0
    for (at, theirs, length), place in sorted(found):
        if at > done:
            break
        known = done - at
        if length > known:
            yield place, Overlap(done, theirs + known, length - known)
            done = at + length
    if done < ours.size:
        raise ConfigError(f"element {done} of {ours} is in none of {len(others)} pieces")


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the spans without empty ones and with adjacent ones joined, but at least one."""
    found: list[Span] = []
    for first, last in spans:
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], last
        elif first < last:
            found.append((first, last))
    return tuple(found) or (spans[0] if spans else (0, 0),)
