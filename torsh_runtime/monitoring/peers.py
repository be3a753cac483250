"""Computes medians over all other ranks, for each of very many ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from torsh_runtime.monitoring.summaries import RankSummary, figures_of, with_figures


class Peers:
    """Groups the ranks of one look by what they do."""

    def __init__(self, ranks: Iterable[RankSummary]) -> None:
        self._ranks: dict[int, list[RankSummary]] = defaultdict(list)
        for each in ranks:
            self._ranks[each.pattern].append(each)
        self._own = {
            pattern: sorted(each.own for each in same) for pattern, same in self._ranks.items()
        }

    def others(self, rank: RankSummary) -> list[RankSummary]:
        """Return the other ranks that do the same."""
        return [each for each in self._ranks.get(rank.pattern, ()) if each.rank != rank.rank]

    def own_of_others(self, rank: RankSummary) -> float | None:
        """Return the median of the other ranks' own work, in seconds; None if there are none."""
        return median_without(self._own.get(rank.pattern, ()), rank.own)


def median_without(ordered: Sequence[float], value: float) -> float | None:
    """Return the median of ascending values without one of this value; None if none is left."""
    left, place = len(ordered) - 1, bisect_left(ordered, value)
    if left < 1:
        return None

    def at(index: int) -> float:
        return ordered[index + (index >= place)]

    return (at((left - 1) // 2) + at(left // 2)) / 2


def median_of(ranks: Sequence[RankSummary]) -> RankSummary:
    """Return the median of each figure and of each section."""
    figures = [median(values) for values in zip(*map(figures_of, ranks), strict=True)]
    sections = [dict(each.sections) for each in ranks]
    names = dict.fromkeys(name for each in sections for name in each)
    usual = [(name, median(each.get(name, 0.0) for each in sections)) for name in names]
    return with_figures(ranks[0], figures, usual)
