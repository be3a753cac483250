"""Computes where dimensions are cut for the ranks of an axis, without arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Shard, even_cuts
from torsh_runtime.parallel.tensor.plan import Column, Cut, Row


def cuts(size: int, ranks: int, unit: int = 1) -> tuple[int, ...]:
    """Return the cuts from 0 to the size, into parts of whole units that differ by one unit at
    most. Raises ConfigError if units do not fit, or if ranks would have nothing."""
    if unit < 1 or size % unit:
        raise ConfigError(f"{size} features are no whole number of heads of {unit} each")
    if size // unit < ranks:
        what = f"{size} features" if unit == 1 else f"{size // unit} heads"
        raise ConfigError(f"{what} are too few for {ranks} ranks: take a smaller axis")
    return tuple(unit * place for place in even_cuts(size // unit, ranks))


def sharded(
    size: int, ranks: int, unit: int = 1, sections: Sequence[int] = (), dim: int = 0
) -> Shard:
    """Return the shard of a dimension of this size. sections: sizes of sections that are each
    cut so."""
    found = _sections(size, sections)
    return _cut_in_sections(found, [cuts(each, ranks, unit) for each in found], dim)


def sharded_heads(size: int, ranks: int, heads: QueryHeads, sections: Sequence[int]) -> Shard:
    """Return the shard of a layer for keys and values. With sections, the first is of the
    queries. There are at least as many heads of keys as ranks."""
    found = _sections(size, sections)
    at = [cuts(each, ranks, heads.width) for each in found]
    if sections:
        at[0] = cuts(found[0], ranks, heads.width * heads.unit(ranks))
    return _cut_in_sections(found, at, 0)


def sizes(shard: Shard) -> tuple[int, ...]:
    """Return the size of the dimension on each rank."""
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
        """Return how many heads of queries attend to one of keys and values."""
        return self.queries // self.keys

    def are_cut(self, ranks: int) -> bool:
        """Return whether each rank has some of the heads of keys and values, and all queries
        that attend to them."""
        return self.keys >= ranks

    def unit(self, ranks: int) -> int:
        """Return how many heads of queries stay together."""
        return self.share if self.are_cut(ranks) else 1

    def own_queries(self, ranks: int, index: int) -> range:
        """Return the heads of queries of a rank."""
        at = cuts(self.queries, ranks, self.unit(ranks))
        return range(at[index], at[index + 1])

    def own_keys(self, ranks: int, index: int) -> tuple[int, ...]:
        """Return the heads of keys and values that a rank uses: each once if equally many of its
        queries attend to each, or else one for each of its queries."""
        looked_at = [query // self.share for query in self.own_queries(ranks, index)]
        counts = {looked_at.count(each) for each in looked_at}
        return tuple(dict.fromkeys(looked_at)) if len(counts) == 1 else tuple(looked_at)


def unit_of(entry: Column | Row | Cut, size: int, ranks: int) -> int:
    """Return how many indices of queries stay together by an entry with `unit` and
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
    """Return the shard of sections of these sizes, each cut at its places."""
    starts = accumulate(found, initial=0)
    rows = [
        [(start + first, start + last) for first, last in pairwise(each)]
        for start, each in zip(starts, at, strict=False)
    ]
    return Shard(dim, parts=tuple(zip(*rows, strict=True)))
