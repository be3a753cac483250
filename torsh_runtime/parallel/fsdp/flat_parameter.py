"""Places the parameters of a unit in a flat one, and tells which rows each rank has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from torsh_runtime.framework import Tensor, Values
from torsh_runtime.layout import (
    FlatLayout,
    Piece,
    end_to_end,
    even_layout,
    even_owners,
    owner_cuts,
    row_cuts,
    row_size,
)
from torsh_runtime.parallel.fsdp.config import Precision


class FlatParameter:
    """Tells where each parameter is placed, and which rows belong to which rank: `cuts`. There is
    padding between parameters if the parts are to be equally large, which may not be possible."""

    def __init__(
        self,
        named: Sequence[tuple[str, Tensor]],
        precision: Precision,
        parts: int,
        part: int,
        *,
        shapes: Sequence[tuple[int, ...]] | None = None,
        layout: FlatLayout | None = None,
        is_owned: bool = False,
        wants_even: bool = False,
    ) -> None:
        """Place the parameters. shapes: those of whole parameters; None: they are whole. layout:
        None means end to end, in parts that end between rows and are about equally large.
        is_owned: each parameter belongs to one part. wants_even: parts are to be equally large."""
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.precision = precision
        self.shapes: list[tuple[int, ...]] = [
            *(shapes or (tuple(each.shape) for each in self.parameters))
        ]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        if layout is None and wants_even:
            layout = even_layout(self.shapes, parts)
        self.layout = layout or end_to_end(self.sizes, row_cuts(self.shapes, parts))
        self.starts, self.cuts = self.layout.starts, self.layout.cuts
        self.is_even = self.layout.is_even
        self.size = self.cuts[-1]
        self.is_owned, self.part, self.wants_even = is_owned, part, wants_even
        self.start, self.end = self.cuts[part], self.cuts[part + 1]
        self.is_trained = self.parameters[0].requires_grad

    @property
    def own_size(self) -> int:
        """Return the number of elements of this rank's part."""
        return self.end - self.start

    def among(self, parts: int, part: int) -> FlatParameter:
        """Return the same parameters among so many ranks, of which this one has this part."""
        if (parts, part) == (len(self.cuts) - 1, self.part):
            return self
        named = [*zip(self.names, self.parameters, strict=True)]
        even = self.wants_even
        shapes = self.shapes
        made = FlatParameter(named, self.precision, parts, part, shapes=shapes, wants_even=even)
        made.is_trained = self.is_trained
        return made

    def gaps(self) -> list[slice]:
        """Return where there is padding."""
        ends = [0, *(start + size for start, size in zip(self.starts, self.sizes, strict=True))]
        pairs = zip(ends, [*self.starts, self.size], strict=True)
        return [slice(end, start) for end, start in pairs if end < start]

    def share(self, number: int) -> tuple[int, int]:
        """Return this rank's elements of one of the parameters: the first, and the one after the
        last. (0, 0) means that it has none."""
        start = self.starts[number]
        first, last = max(self.start - start, 0), min(self.end - start, self.sizes[number])
        return (first, last) if first < last else (0, 0)

    def span(self, number: int) -> tuple[int, int]:
        """Return this rank's elements of one of the parameters as positions in this rank's part."""
        first, last = self.share(number)
        offset = self.starts[number] - self.start
        return (first + offset, last + offset) if first < last else (0, 0)

    def own_shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of this rank's rows of one of the parameters, which has all its
        dimensions. Without elements that is (0,) for a parameter without dimensions."""
        first, last = self.share(number)
        shape = self.shapes[number]
        if last - first == self.sizes[number]:
            return shape
        return ((last - first) // max(row_size(shape), 1), *shape[1:])

    def piece(self, number: int) -> Piece:
        """Return the piece of one of the parameters that this rank has."""
        shape = self.shapes[number]
        return Piece(shape, (0,) * len(shape), shape, *self.share(number))

    def parts(self, whole: Values) -> list[Values]:
        """Return each rank's part of a flat tensor of this layout."""
        return [whole[start:end] for start, end in pairwise(self.cuts)]

    def split(self, owners: Mapping[int, int]) -> list[FlatParameter]:
        """Return flat parameters with those that are to be owned as a whole, and with the rest.

        owners: the rank that is to have a parameter, by id().
        """
        if self.is_owned or not any(id(each) in owners for each in self.parameters):
            return [self]
        numbers = range(len(self.parameters))
        rest = [number for number in numbers if id(self.parameters[number]) not in owners]
        owned = [number for number in numbers if number not in rest]
        owned.sort(key=lambda number: owners[id(self.parameters[number])])
        sizes = [self.sizes[number] for number in owned]
        chosen = [owners[id(self.parameters[number])] for number in owned]
        found = [self._of(owned, self._owned_layout(sizes, chosen), is_owned=True)]
        return [self._of(rest, self._layout_of(rest)), *found] if rest else found

    def _of(
        self, numbers: Sequence[int], layout: FlatLayout, is_owned: bool = False
    ) -> FlatParameter:
        named = [(self.names[number], self.parameters[number]) for number in numbers]
        shapes = [self.shapes[number] for number in numbers]
        return FlatParameter(
            named,
            self.precision,
            len(self.cuts) - 1,
            self.part,
            shapes=shapes,
            layout=layout,
            is_owned=is_owned,
            wants_even=self.wants_even,
        )

    def _owned_layout(self, sizes: Sequence[int], owners: Sequence[int]) -> FlatLayout:
        parts = len(self.cuts) - 1
        layout = even_owners(sizes, owners, parts) if self.wants_even else None
        return layout or end_to_end(sizes, owner_cuts(sizes, owners, parts))

    def _layout_of(self, numbers: Sequence[int]) -> FlatLayout:
        """Return the layout that leaves the parts of these parameters as they are, for optimizers
        that have state of them."""

        def before(cut: int, number: int) -> int:
            return min(max(cut - self.starts[number], 0), self.sizes[number])

        sizes = [self.sizes[number] for number in numbers]
        cuts = [sum(before(cut, number) for number in numbers) for cut in self.cuts]
        return end_to_end(sizes, cuts)
