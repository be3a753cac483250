"""Computes unions of stretches of time, and how much of a step they cover."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Stretch = tuple[float, float]
"""Begin and end of a stretch, in seconds."""


class Cover:
    """Represents the union of some stretches. Empty and backward ones are ignored."""

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._before: list[float] = []
        total = 0.0
        for begin, end in sorted(stretches):
            if end <= begin:
                continue
            if self._ends and begin <= self._ends[-1]:
                more = max(end - self._ends[-1], 0.0)
                self._ends[-1] += more
            else:
                self._begins.append(begin)
                self._ends.append(end)
                self._before.append(total)
                more = end - begin
            total += more

    def within(self, begin: float, end: float) -> float:
        """Return how many seconds between these two moments are covered."""
        return max(self._until(end) - self._until(begin), 0.0)

    def _until(self, moment: float) -> float:
        """Return the covered seconds before this moment."""
        place = bisect_right(self._begins, moment) - 1
        if place < 0:
            return 0.0
        return self._before[place] + min(moment, self._ends[place]) - self._begins[place]

    def between(self, begin: float, end: float) -> list[Stretch]:
        """Return the whole stretches that overlap with the time between these moments,
        ascending."""
        first = bisect_right(self._ends, begin)
        last = bisect_right(self._begins, end)
        return list(zip(self._begins[first:last], self._ends[first:last], strict=True))
