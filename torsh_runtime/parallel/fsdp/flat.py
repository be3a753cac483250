"""Parameters of one unit and of one kind, end to end, of which each rank owns a part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from torsh_runtime.framework import Tensor, Values
from torsh_runtime.layout import Piece, even_cuts
from torsh_runtime.parallel.fsdp.precision import Precision


class FlatParameter:
    """Tells where each parameter is placed, and which elements belong to which rank: `cuts`,
    without padding."""

    def __init__(
        self,
        named: Sequence[tuple[str, Tensor]],
        precision: Precision,
        parts: int,
        part: int,
    ) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.precision = precision
        self.shapes: list[tuple[int, ...]] = [
            tuple(parameter.shape) for parameter in self.parameters
        ]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.starts = [0, *accumulate(self.sizes)][:-1]
        self.size = sum(self.sizes)
        self.part, self.cuts = part, even_cuts(self.size, parts)
        self.start, self.end = self.cuts[part], self.cuts[part + 1]
        self.is_trained = self.parameters[0].requires_grad

    @property
    def own_size(self) -> int:
        """Return the number of elements of this rank's part."""
        return self.end - self.start

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

    def piece(self, number: int) -> Piece:
        """Return the piece of one of the parameters that this rank has."""
        shape = self.shapes[number]
        return Piece(shape, (0,) * len(shape), shape, *self.share(number))

    def parts(self, whole: Values) -> list[Values]:
        """Return each rank's part of a flat tensor of this layout."""
        return [whole[start:end] for start, end in pairwise(self.cuts)]
