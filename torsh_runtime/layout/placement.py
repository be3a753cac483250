"""Describes how a tensor is placed on the axes of a mesh, and which piece a rank has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout.piece import Piece, Span


@dataclass(frozen=True, slots=True)
class Replicate:
    """States that all ranks along the axis have the same elements.

    Example:
        ```python
        layout = tr.TensorLayout((8,), (("dp", 4, Replicate()),))
        layout.piece({"dp": 3}).is_whole  # True
        ```
    """


@dataclass(frozen=True, slots=True)
class Shard:
    """States that each rank along the axis has a part of dimension `dim`.

    Parts are cut as by torch.chunk(), the first ones rounded up. If there are `sections` along the
    dimension, such as query, key and value of a fused projection, each rank has a part of each.
    Otherwise `parts` may list the parts.

    Raises:
        ConfigError: If parts overlap without being equal, or if both `sections` and `parts` are
            given.

    Example:
        ```python
        layout = tr.TensorLayout((8, 4), (("tp", 2, tr.Shard(0)),))
        layout.piece({"tp": 1}).shape  # (4, 4)
        ```
    """

    dim: int
    """The dimension that is divided."""
    sections: tuple[int, ...] = ()
    """Sizes of the sections."""
    parts: tuple[tuple[Span, ...], ...] = ()
    """For each rank along the axis its ascending ranges of indices.

    Several ranks may have the same, as with heads of keys and values if there are fewer than ranks.
    """

    def __post_init__(self) -> None:
        if self.sections and self.parts:
            raise ConfigError("Shard takes sections that are cut evenly, or parts, and not both")
        if not self._are_apart():
            raise ConfigError(f"parts {self.parts} of a Shard overlap: they must be apart or alike")

    @classmethod
    def at(cls, dim: int, cuts: Sequence[int]) -> Shard:
        """Cut at these indices, from 0 to the size: the i-th rank has `cuts[i]` to `cuts[i + 1]`.

        Args:
            dim: The dimension that is divided.
            cuts: The indices, ascending, one more than there are ranks.

        Returns:
            The placement.

        Returns:
            The placement.

        Example:
            ```python
            tr.Shard.at(0, [0, 3, 8]).spans(8, 2, 1)  # ((3, 8),)
            ```
        """
        return cls(dim, parts=tuple(((first, last),) for first, last in pairwise(cuts)))

    def spans(self, size: int, parts: int, index: int) -> tuple[Span, ...]:
        """Return which indices of the dimension a rank has, as pairs (first, after the last).

        Args:
            size: The number of indices.
            parts: The number of ranks along the axis.
            index: The rank's index along the axis.

        Raises:
            ConfigError: If sections or parts do not fit.

        Example:
            ```python
            tr.Shard(0).spans(5, 2, 0)  # ((0, 3),): the first part is rounded up
            ```
        """
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
        """Return whether no earlier rank along the axis has the part of the rank at `index`."""
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
    """States that the i-th rank along the axis has elements cuts[i] to cuts[i + 1].

    They are counted in row-major order among the elements that the previous axes left.

    Raises:
        ConfigError: From TensorLayout, if the cuts are not one more than ranks, ascending from 0.

    Example:
        ```python
        layout = tr.TensorLayout((2, 4), (("dp", 2, Flat(even_cuts(8, 2))),))
        layout.piece({"dp": 1}).size  # 4
        ```
    """

    cuts: tuple[int, ...]
    """The numbers of the elements at which the tensor is cut, from 0 to its size."""


@dataclass(frozen=True, slots=True)
class Partial:
    """States that the tensor is the sum of the equally shaped values along the axis.

    Example:
        ```python
        layout = tr.TensorLayout((8,), (("tp", 2, Partial()),))
        layout.sharded()  # ()
        ```
    """


Placement = Replicate | Shard | Flat | Partial


def even_cuts(size: int, parts: int) -> tuple[int, ...]:
    """Return where to cut `size` elements into `parts` parts that differ by one element at most.

    Args:
        size: The number of elements.
        parts: The number of parts.

    Returns:
        parts + 1 numbers, from 0 to `size`.

    Example:
        ```python
        even_cuts(10, 4)  # (0, 2, 5, 7, 10)
        ```
    """
    return tuple(size * part // parts for part in range(parts + 1))


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Describes a tensor's shape and its placement along each axis, the outermost first.

    Raises:
        ConfigError: For a dimension that the tensor does not have, and if an axis after a Flat one
            divides further.

    Example:
        ```python
        layout = tr.TensorLayout((8, 4), (("dp", 2, Replicate()), ("tp", 2, tr.Shard(1))))
        layout.sharded()  # ("tp",); Replicate is in torsh_runtime.layout
        ```
    """

    shape: tuple[int, ...]
    """The shape of the whole tensor."""
    axes: tuple[tuple[str, int, Placement], ...] = ()
    """Name, number of ranks and placement of each axis."""

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
        """Return the piece of the rank at a coordinate.

        Args:
            coordinate: The rank's index along each axis of the layout; other axes are ignored.

        Raises:
            KeyError: If it lacks an axis.
            ConfigError: If the sections or parts of a Shard do not fit.

        Example:
            ```python
            layout = tr.TensorLayout((8, 4), (("tp", 2, tr.Shard(0)),))
            layout.piece({"tp": 1}).offsets  # (4, 0)
            ```
        """
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
        """Return the boxes at a coordinate in row-major order.

        Args:
            coordinate: As piece().

        Raises:
            ConfigError: If the piece is a part of a box.
        """
        whole = self.piece(coordinate)
        if not whole.is_box:
            raise ConfigError(f"{whole} is a part of what the axes before left, and no boxes")
        rows = (whole.spans_of(dim) for dim in range(len(self.shape)))
        return tuple(Piece.of_spans(self.shape, [[each] for each in box]) for box in product(*rows))

    def sharded(self) -> tuple[str, ...]:
        """Return the names of the axes along which ranks have different elements.

        Example:
            ```python
            tr.TensorLayout((8, 4), (("tp", 2, tr.Shard(0)),)).sharded()  # ("tp",)
            ```
        """
        return tuple(
            name
            for name, size, placement in self.axes
            if size > 1 and isinstance(placement, Shard | Flat)
        )

    def is_first(self, coordinate: Mapping[str, int]) -> bool:
        """Return whether no earlier coordinate along the sharded axes has the same elements.

        Args:
            coordinate: As piece().
        """
        return all(
            not isinstance(placement, Shard) or placement.is_first(coordinate[name])
            for name, _, placement in self.axes
        )


def _within(outer: Sequence[Span], inner: Sequence[Span]) -> tuple[Span, ...]:
    """Return the indices of the outer spans that the inner spans select by position."""
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
