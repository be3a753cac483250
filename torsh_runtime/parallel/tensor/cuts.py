"""Where dimensions are cut for the ranks of an axis: arithmetic, without arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

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
    found = _sections(size, sections)
    return _cut_in_sections(found, [cuts(each, ranks, unit) for each in found], dim)


def sharded_heads(size: int, ranks: int, heads: QueryHeads, sections: Sequence[int]) -> Shard:
    """Of a layer for keys and values, which lie behind the queries where there are sections, as
    many heads as there are at least as many of as ranks."""
    found = _sections(size, sections)
    at = [cuts(each, ranks, heads.width) for each in found]
    if sections:
        at[0] = cuts(found[0], ranks, heads.width * heads.unit(ranks))
    return _cut_in_sections(found, at, 0)


def sizes(shard: Shard) -> tuple[int, ...]:
    """What each rank has of the dimension."""
    return tuple(sum(last - first for first, last in part) for part in shard.parts)


@dataclass(frozen=True, slots=True)
class QueryHeads:
    """Heads of queries, and those of keys and values that they look at."""

    queries: int
    keys: int
    width: int = 1

    def __post_init__(self) -> None:
        if self.keys < 1 or self.queries % self.keys:
            raise ConfigError(
                f"{self.keys} heads of keys and values do not divide {self.queries} of queries"
            )

    @property
    def share(self) -> int:
        """How many of queries look at one of keys and values."""
        return self.queries // self.keys

    def are_cut(self, ranks: int) -> bool:
        """Whether each rank has some of the heads of keys and values, and all queries that look at
        them."""
        return self.keys >= ranks

    def unit(self, ranks: int) -> int:
        """How many heads of queries stay together."""
        return self.share if self.are_cut(ranks) else 1

    def own_queries(self, ranks: int, index: int) -> range:
        """Those of a rank."""
        at = cuts(self.queries, ranks, self.unit(ranks))
        return range(at[index], at[index + 1])

    def own_keys(self, ranks: int, index: int) -> tuple[int, ...]:
        """The heads of keys and values that a rank uses: each once if equally many of its queries
        look at each, or one for each of its queries."""
        looked_at = [query // self.share for query in self.own_queries(ranks, index)]
        counts = {looked_at.count(each) for each in looked_at}
        return tuple(dict.fromkeys(looked_at)) if len(counts) == 1 else tuple(looked_at)


def unit_of(entry: Any, size: int, ranks: int) -> int:
    """How many indices of those of queries stay together by an entry with `unit` and
    `key_value_heads`."""
    if entry.key_value_heads is None:
        return int(entry.unit)
    heads = QueryHeads(size // entry.unit, entry.key_value_heads)
    return int(entry.unit * heads.unit(ranks))


def _sections(size: int, sections: Sequence[int]) -> tuple[int, ...]:
    found = tuple(sections) or (size,)
    if sum(found) != size:
        raise ConfigError(f"sections of {found} are not all of {size} features")
    return found


def _cut_in_sections(found: Sequence[int], at: Sequence[Sequence[int]], dim: int) -> Shard:
    """Sections of these sizes, each cut at its places."""
    starts = accumulate(found, initial=0)
    rows = [
        [(start + first, start + last) for first, last in pairwise(each)]
        for start, each in zip(starts, at, strict=False)
    ]
    return Shard(dim, parts=tuple(zip(*rows, strict=True)))
