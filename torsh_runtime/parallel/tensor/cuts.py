"""Where dimensions are cut for the ranks of an axis: arithmetic, without arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Shard, even_cuts


def cuts(size: int, ranks: int, unit: int = 1) -> tuple[int, ...]:
    """From 0 to the size, into parts of whole units that differ by one unit at most. ConfigError
    where units do not fit, and for ranks that would have nothing.
    """
    if unit < 1 or size % unit:
        raise ConfigError(f"{size} features are no whole number of heads of {unit} each")
    if size // unit < ranks:
        what = f"{size} features" if unit == 1 else f"{size // unit} heads"
        raise ConfigError(f"{what} are too few for {ranks} ranks: take a smaller axis")
    return tuple(unit * place for place in even_cuts(size // unit, ranks))


def sharded(
    size: int, ranks: int, unit: int = 1, sections: Sequence[int] = (), dim: int = 0
) -> Shard:
    """A dimension of this size, cut so; sections: sizes of those that are each cut so."""
    found = tuple(sections) or (size,)
    if sum(found) != size:
        raise ConfigError(f"sections of {found} are not all of {size} features")
    starts = accumulate(found, initial=0)
    rows = [
        [(start + first, start + last) for first, last in pairwise(cuts(each, ranks, unit))]
        for start, each in zip(starts, found, strict=False)
    ]
    return Shard(dim, parts=tuple(zip(*rows, strict=True)))


def sizes(shard: Shard) -> tuple[int, ...]:
    """What each rank has of the dimension."""
    return tuple(sum(last - first for first, last in part) for part in shard.parts)
