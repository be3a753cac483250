"""A piece of a tensor, and what two pieces have in common.

Elements of a tensor are numbered in row-major order, the last dimension fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements `start` to `end` (exclusive), in row-major order, of the box of size `shape` that
    begins at `offsets` in a tensor of shape `global_shape`.

    ConfigError for what does not lie in the tensor.
    """

    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    end: int

    def __post_init__(self) -> None:
        sizes = (self.global_shape, self.offsets, self.shape)
        is_box = len({*map(len, sizes)}) == 1 and all(
            min(offset, size) >= 0 and offset + size <= whole
            for whole, offset, size in zip(*sizes, strict=True)
        )
        if not is_box or not 0 <= self.start <= self.end <= math.prod(self.shape):
            raise ConfigError(
                f"elements {self.start} to {self.end} of a box {self.shape} at {self.offsets} are "
                f"no piece of a tensor of shape {self.global_shape}"
            )

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Piece:
        """All of a tensor."""
        return cls(shape, (0,) * len(shape), shape, 0, math.prod(shape))

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

    def runs(self) -> Iterator[Run]:
        """Its elements, by ascending number."""
        if not self.size:
            return
        solid = self._first_solid_dim()
        length = math.prod(self.shape[solid:])
        inner = self._number((0,) * solid + self.offsets[solid:])
        for row in range(self.start // length, (self.end - 1) // length + 1):
            first, last = max(row * length, self.start), min((row + 1) * length, self.end)
            number = inner + self._number(self._row(row, solid)) + first - row * length
            yield Run(number, first - self.start, last - first)

    def _row(self, row: int, solid: int) -> tuple[int, ...]:
        """Where in the tensor a run of the box begins, without the solid dimensions."""
        index = [0] * len(self.shape)
        for dim in reversed(range(solid)):
            row, at = divmod(row, self.shape[dim])
            index[dim] = self.offsets[dim] + at
        return tuple(index)

    def _first_solid_dim(self) -> int:
        """The dimension from which on the box has no gaps in the tensor."""
        dim = len(self.shape)
        while dim and self.shape[dim:] == self.global_shape[dim:]:
            dim -= 1
        return dim

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
