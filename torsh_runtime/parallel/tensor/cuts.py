"""Where dimensions are cut for the ranks of an axis: arithmetic, without arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import even_cuts


@dataclass(frozen=True, slots=True)
class Cuts:
    """Of one dimension, in sections that are each cut for all ranks, as those of the queries, keys
    and values of one weight are."""

    dim: int
    sections: tuple[tuple[int, ...], ...]
    """Of each where it is cut, from 0 to its size."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """What each rank has of the dimension."""
        parts = [[end - start for start, end in pairwise(cuts)] for cuts in self.sections]
        return tuple(map(sum, zip(*parts, strict=True)))

    @property
    def size(self) -> int:
        """Of the whole dimension."""
        return sum(cuts[-1] for cuts in self.sections)

    def spans(self, rank: int) -> list[tuple[int, int]]:
        """What a rank has of each section: start and end (exclusive) in the whole dimension."""
        found, before = [], 0
        for cuts in self.sections:
            found.append((before + cuts[rank], before + cuts[rank + 1]))
            before += cuts[-1]
        return found

    def along(self, dim: int) -> Cuts:
        """The same of another dimension."""
        return Cuts(dim, self.sections)


def cut(size: int, ranks: int, unit: int = 1, sections: Sequence[int] = ()) -> Cuts:
    """Cut dimension 0, of this size, into parts of whole units that differ by one unit at most.

    sections: sizes of those that are each cut so; none if it is all one. ConfigError where they do
    not fit, and for ranks that would have nothing.
    """
    found = tuple(sections) or (size,)
    if sum(found) != size:
        raise ConfigError(f"sections of {found} are not all of {size} features")
    return Cuts(0, tuple(_section(each, ranks, unit) for each in found))


def _section(size: int, ranks: int, unit: int) -> tuple[int, ...]:
    if unit < 1 or size % unit:
        raise ConfigError(f"{size} features are no whole number of heads of {unit} each")
    if size // unit < ranks:
        what = f"{size} features" if unit == 1 else f"{size // unit} heads"
        raise ConfigError(f"{what} are too few for {ranks} ranks: take a smaller axis")
    return tuple(unit * place for place in even_cuts(size // unit, ranks))
