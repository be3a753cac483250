"""How a tensor lies on the axes of a mesh, and which piece of it a rank has so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout.piece import Piece, Span


@dataclass(frozen=True, slots=True)
class Replicate:
    """All along the axis have the same."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Each along the axis has a part of dimension `dim`, the first ones rounded up, as
    torch.chunk() cuts; of several sections that lie along it, such as the query, key and value of a
    fused projection, a part of each; or what `parts` says.

    ConfigError for parts of which some overlap without being the same.
    """

    dim: int
    sections: tuple[int, ...] = ()
    """Their sizes."""
    parts: tuple[tuple[Span, ...], ...] = ()
    """For each along the axis the indices that it has, ascending. Several may have the same, as
    heads of keys and values where there are fewer of them than ranks."""

    def __post_init__(self) -> None:
        if self.sections and self.parts:
            raise ConfigError("Shard takes sections that are cut evenly, or parts, and not both")
        if not self._are_apart():
            raise ConfigError(f"parts {self.parts} of a Shard overlap: they must be apart or alike")

    @classmethod
    def at(cls, dim: int, cuts: Sequence[int]) -> Shard:
        """Cut at these places, from 0 to the size: `cuts[i]` to `cuts[i + 1]` for each."""
        return cls(dim, parts=tuple(((first, last),) for first, last in pairwise(cuts)))

    def spans(self, size: int, parts: int, index: int) -> tuple[Span, ...]:
        """What one along an axis of so many has of `size` indices. ConfigError if they are not
        those that sections or parts tell of."""
        if self.parts:
            self._check(size, parts)
            return self.parts[index]
        sections = self.sections or (size,)
        if sum(sections) != size:
            raise ConfigError(f"sections {sections} do not make {size} indices of dim {self.dim}")
        starts = accumulate(sections, initial=0)
        return tuple(
            (start + min(index * step, own), start + min((index + 1) * step, own))
            for start, own in zip(starts, sections, strict=False)
            for step in [-(-own // parts)]
        )

    def is_first(self, index: int) -> bool:
        """Whether nobody before it along the axis has the same."""
        return not self.parts or self.parts.index(self.parts[index]) == index

    def _are_apart(self) -> bool:
        spans = sorted(span for part in {*self.parts} for span in part if span[0] < span[1])
        return all(one[1] <= other[0] for one, other in pairwise(spans))

    def _check(self, size: int, parts: int) -> None:
        there = sum(last - first for part in {*self.parts} for first, last in part)
        if len(self.parts) != parts or there != size:
            raise ConfigError(
                f"{len(self.parts)} parts with {there} indices do not cut {size} indices of dim "
                f"{self.dim} for {parts} ranks"
            )


@dataclass(frozen=True, slots=True)
class Flat:
    """Each along the axis has elements cuts[i] to cuts[i + 1], row-major, of what the axes before
    left."""

    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Partial:
    """All along the axis have something of the same shape, of which the sum is the tensor."""


Placement = Replicate | Shard | Flat | Partial


def even_cuts(size: int, parts: int) -> tuple[int, ...]:
    """Where to cut `size` elements into so many parts that differ by one element at most."""
    return tuple(size * part // parts for part in range(parts + 1))


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A tensor's shape, and its placement along each axis, the outermost first.

    ConfigError for a dimension that it has not, and where something follows a Flat axis that
    divides further.
    """

    shape: tuple[int, ...]
    axes: tuple[tuple[str, int, Placement], ...] = ()
    """Name, number of ranks, placement."""

    def __post_init__(self) -> None:
        is_flat = False
        for name, size, placement in self.axes:
            if isinstance(placement, Shard) and placement.dim not in range(len(self.shape)):
                raise ConfigError(
                    f"axis {name!r}: a tensor of shape {self.shape} has no dimension "
                    f"{placement.dim}"
                )
            if is_flat and isinstance(placement, Shard | Flat):
                raise ConfigError(f"axis {name!r}: nothing divides what is divided flat already")
            if isinstance(placement, Flat):
                is_flat = True
                _check_cuts(name, placement.cuts, size)

    def piece(self, coordinate: Mapping[str, int]) -> Piece:
        """What is at this place: `coordinate` is the index along each axis, of which those that are
        not of this layout make no difference."""
        spans: list[tuple[Span, ...]] = [((0, size),) for size in self.shape]
        part: Span | None = None
        for name, parts, placement in self.axes:
            index = coordinate[name]
            if isinstance(placement, Shard):
                dim = placement.dim
                size = sum(last - first for first, last in spans[dim])
                spans[dim] = _within(spans[dim], placement.spans(size, parts, index))
            elif isinstance(placement, Flat):
                part = placement.cuts[index], placement.cuts[index + 1]
        found = Piece.of_spans(self.shape, spans)
        return found if part is None else found.part(*part)

    def pieces(self, coordinate: Mapping[str, int]) -> tuple[Piece, ...]:
        """The boxes that are at this place, in row-major order. ConfigError for a part of one."""
        whole = self.piece(coordinate)
        if not whole.is_box:
            raise ConfigError(f"{whole} is a part of what the axes before left, and no boxes")
        rows = (whole.spans_of(dim) for dim in range(len(self.shape)))
        return tuple(Piece.of_spans(self.shape, [[each] for each in box]) for box in product(*rows))

    def sharded(self) -> tuple[str, ...]:
        """The axes along which ranks have different elements."""
        return tuple(
            name
            for name, size, placement in self.axes
            if size > 1 and isinstance(placement, Shard | Flat)
        )

    def is_first(self, coordinate: Mapping[str, int]) -> bool:
        """Whether, along the sharded axes, nobody before this place has the same elements."""
        return all(
            not isinstance(placement, Shard) or placement.is_first(coordinate[name])
            for name, _, placement in self.axes
        )


def _within(outer: Sequence[Span], inner: Sequence[Span]) -> tuple[Span, ...]:
    """Spans of what lies in others, one behind the other."""
    found: list[Span] = []
    for first, last in inner:
        start = 0
        for low, high in outer:
            begin, end = max(first, start), min(last, start + high - low)
            if begin < end:
                found.append((low + begin - start, low + end - start))
            start += high - low
    return tuple(found) or ((0, 0),)


def _check_cuts(name: str, cuts: tuple[int, ...], parts: int) -> None:
    if len(cuts) != parts + 1 or cuts[0] != 0 or any(a > b for a, b in pairwise(cuts)):
        raise ConfigError(f"axis {name!r}: {cuts} do not cut a tensor into {parts} parts")
