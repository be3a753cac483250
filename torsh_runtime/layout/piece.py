"""A piece of a tensor, and what two pieces have in common.

Elements of a tensor are numbered in row-major order, the last dimension fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torsh_runtime.errors import ConfigError


class Run(NamedTuple):
    """Elements that lie one behind the other, both in the tensor and in a piece of it."""

    number: int
    """The first one's in the tensor."""
    at: int
    """Where that one is in the piece."""
    length: int


class Overlap(NamedTuple):
    """Elements that two pieces share, one behind the other in both."""

    ours: int
    """Where the first one is in the one piece."""
    theirs: int
    """Where it is in the other one."""
    length: int


Span = tuple[int, int]
"""Indices along a dimension: the first, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements `start` to `end` (exclusive), in row-major order, of the box of size `shape` that
    begins at `offsets` in a tensor of shape `global_shape`; of several boxes with gaps between
    them, the indices along each dimension are those of its `spans`, which ascend.

    ConfigError for what does not lie in the tensor.
    """

    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    end: int
    spans: tuple[tuple[Span, ...], ...] = ()
    """Empty for one box. Make others with `of_spans`, so that equal ones are written alike."""

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
        """All of a tensor."""
        return cls(shape, (0,) * len(shape), shape, 0, math.prod(shape))

    @classmethod
    def of_spans(cls, global_shape: tuple[int, ...], spans: Sequence[Sequence[Span]]) -> Piece:
        """All elements whose index along each dimension lies in one of its spans."""
        joined = tuple(map(_joined, spans))
        offsets = tuple(own[0][0] for own in joined)
        shape = tuple(sum(last - first for first, last in own) for own in joined)
        kept = joined if any(len(own) > 1 for own in joined) else ()
        return cls(global_shape, offsets, shape, 0, math.prod(shape), kept)

    def part(self, first: int, last: int) -> Piece:
        """Of its own elements these, counted from its first."""
        return replace(self, start=self.start + first, end=self.start + last)

    def spans_of(self, dim: int) -> tuple[Span, ...]:
        """The indices that it has along a dimension."""
        if self.spans:
            return self.spans[dim]
        return ((self.offsets[dim], self.offsets[dim] + self.shape[dim]),)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.end - self.start

    @property
    def is_box(self) -> bool:
        """Whether it has all elements of its box."""
        return self.size == math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether it has all elements of the tensor."""
        return self.size == math.prod(self.global_shape)

    @property
    def label(self) -> str:
        """Which elements of the tensor it has, as text that no other piece of it has."""
        box = ",".join(
            "+".join(f"{first}:{last}" for first, last in self.spans_of(dim))
            for dim in range(len(self.shape))
        )
        return f"[{box}][{self.start}:{self.end}]"

    def runs(self) -> Iterator[Run]:
        """Its elements, by ascending number."""
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
        """Where in the tensor a row of the solid dimensions begins."""
        index = [0] * len(self.shape)
        for dim in reversed(range(solid)):
            row, at = divmod(row, self.shape[dim])
            index[dim] = self._index(dim, at)
        return tuple(index)

    def _index(self, dim: int, at: int) -> int:
        """Along a dimension of the tensor, of what is at this place along it here."""
        for first, last in self.spans_of(dim):
            if at < last - first:
                return first + at
            at -= last - first
        raise IndexError(at)

    def _first_solid_dim(self) -> int:
        """The dimension after which the box has no gaps in the tensor."""
        dim = len(self.shape)
        while dim and self.shape[dim:] == self.global_shape[dim:]:
            dim -= 1
        return dim

    @property
    def _ndim(self) -> int:
        return len(self.global_shape)

    def _has(self, dim: int) -> bool:
        """Whether the spans along a dimension are such, and those that offsets and shape tell."""
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
    """A rank's piece of a tensor, with its values."""

    values: Any
    """An array or tensor of piece.size elements, in order; it may be of any shape."""
    piece: Piece


def overlaps(ours: Piece, theirs: Piece) -> Iterator[Overlap]:
    """What two pieces of one tensor have in common, by ascending number.

    ConfigError if they are of tensors of other shapes.
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
    """Where each element of a piece is to be found in others, once each: the place among them of
    the one that has it, and what the two have in common; by ascending number.

    ConfigError if none of them has it.
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
    """Without empty ones, and such that touch are one; at least one, if it is empty."""
    found: list[Span] = []
    for first, last in spans:
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], last
        elif first < last:
            found.append((first, last))
    return tuple(found) or (spans[0] if spans else (0, 0),)
