"""Computes by how much a rank takes longer than it should, and whether by more than chance
explains. Pure.

Steps may vary by chance, as with sentences of all lengths, or when garbage is collected now and
then. How much they vary is estimated from the differences between looks that follow each other (von
Neumann, "Distribution of the ratio of the mean square successive difference to the variance",
1941), which a change that lasts hardly touches. The mean of looks has to exceed what chance would
explain, so the more they vary, the more looks it takes; and their median, which a hiccup does not
touch, has to be as large as is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import log, sqrt
from typing import NamedTuple

_HELD = 64
"""Looks that are remembered."""
_LONE = log(2)
"""Excess beyond which a single look may be a hiccup, so that another look is needed."""
_SURE, _SURER = 3.5, 5.0
"""Standard errors that an excess must have, and those where looks vary much: few of them are
extreme there, and these very. There are many looks and ranks."""
_MUCH = 0.08
"""Standard deviation of a look from which looks count as varying much."""
_MOST_DIFFERENCE = 0.7
"""Difference of two looks beyond which it is a hiccup, which says little of how much they vary."""
_LARGEST = 1e6
"""The largest ratio, since it may be nonsense."""
_USUAL, _WEIGHT = 0.03, 4
"""Standard deviation of a look that is assumed before any is seen, and the looks it counts for."""
_COMMON_WEIGHT = 8
"""The number of a rank's own looks that the common variance counts for."""


class Spread(NamedTuple):
    """Squared differences between looks that follow each other, and their number."""

    squares: float
    differences: int

    def variance(self, supposed: float, weight: int) -> float:
        """Return the variance of one look. The supposed one counts like `weight` looks."""
        return (self.squares / 2 + weight * supposed) / (self.differences + weight)


@dataclass
class Excess:
    """Excess of one rank, look by look."""

    _looks: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_HELD))
    """Steps of each look, and the logarithm of how many times as long as expected they took."""
    _squares: deque[float] = field(default_factory=deque)
    """Squares of the newest differences between two looks."""
    _sum: float = 0.0
    _last: float | None = None

    def add(self, steps: int, ratio: float) -> None:
        """Add a look at `steps` steps, which took `ratio` times as long as they should."""
        excess = log(min(max(ratio, 1 / _LARGEST), _LARGEST))
        if self._last is not None:
            self._squares.append(min(abs(excess - self._last), _MOST_DIFFERENCE) ** 2)
            self._sum += self._squares[-1]
            if len(self._squares) > _HELD:
                self._sum -= self._squares.popleft()
        self._last = excess
        self._looks.append((steps, excess))

    def forget(self) -> None:
        """Forget the looks. How much they vary is remembered."""
        self._looks.clear()

    @property
    def spread(self) -> Spread:
        return Spread(max(self._sum, 0.0), len(self._squares))

    def _spread_without(self, looks: int) -> Spread:
        """Return the spread without the step up to the last looks, which would be the change and no
        noise."""
        squares, count = self.spread
        if count < looks:
            return self.spread
        return Spread(max(squares - self._squares[-looks], 0.0), count - 1)

    def looks_above(self, ratio: float, steps: int, common: float) -> int:
        """Return how many of the last looks, which saw at least `steps` steps, prove that the rank
        takes `ratio` times as long. 0 is none. `common` is the result of common_variance()."""
        looks, enough = self._fewest(steps), log(ratio)
        if not looks or self._middle(looks) < enough / 2:
            return 0
        while looks <= len(self._looks):
            noise = sqrt(self._spread_without(looks).variance(common, _COMMON_WEIGHT))
            is_much = self._middle(looks) >= enough and (looks > 1 or self._mean(1) <= _LONE)
            sure = _SURER if noise > _MUCH else _SURE
            if is_much and self._mean(looks) >= sure * noise / sqrt(max(looks - 1, 0.5)):
                return looks
            looks *= 2
        return 0

    def is_below(self, ratio: float, steps: int, looks: int) -> bool:
        """Return whether it took less in most of the last looks: at least `looks` of them, which
        saw at least `steps` steps."""
        count = max(self._fewest(steps), looks)
        return len(self._looks) >= count > 0 and self._middle(count, upper=True) < log(ratio)

    def _fewest(self, steps: int) -> int:
        """Return how many of the last looks saw `steps` steps together, or 0 if all of them did
        not."""
        for count, (seen, _) in enumerate(reversed(self._looks), 1):
            steps -= seen
            if steps <= 0:
                return count
        return 0

    def _middle(self, count: int, *, upper: bool = False) -> float:
        """Return the lower, or upper, median of the last looks."""
        return sorted(self._newest(count))[count // 2 if upper else (count - 1) // 2]

    def _mean(self, count: int) -> float:
        return sum(self._newest(count)) / count

    def _newest(self, count: int) -> list[float]:
        return [excess for _, excess in islice(reversed(self._looks), count)]


def common_variance(spreads: Iterable[Spread]) -> float:
    """Return the variance of a look of any rank."""
    squares, count = 0.0, 0
    for each in spreads:
        squares, count = squares + each.squares, count + each.differences
    return Spread(squares, count).variance(_USUAL * _USUAL, _WEIGHT)
