"""Estimates how far another node's monotonic clock is ahead, with a bound that holds.

Everything here is pure: no clock, no I/O. An exchange is a message and its answer. The other
clock's stamps of it lie between one's own, which bounds the offset from both sides (Cristian 1989),
however long either way took: a late message says little, and nothing wrong. All bounds of a window
hold at once (Marzullo 1984), along a line, as clocks drift. So the possible values are a convex
polygon of offsets and drifts, and each exchange cuts two half-planes from it. Where RFC 5905
estimates errors by their spread, this is an interval.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

MOST_DRIFT = 500e-6
"""The most by which a clock may run faster than another: as much as Linux lets NTP correct."""
WANDER = 2e-6
"""The most by which that may change in a minute or two: quartz changes some 0.1 ppm a degree."""
_ROUNDING = 2e-9
"""Seconds."""
_KEPT = 64
"""Exchanges, the latest."""

Point = tuple[float, float]
"""An offset in seconds, and a drift in seconds a second."""


class Exchange(NamedTuple):
    """A message and its answer, in seconds of the CLOCK_MONOTONIC of who sends and who answers."""

    sent: float
    received: float
    """The time when it was received by the other's clock, as is `answered`."""
    answered: float
    came: float
    """The time when the answer had arrived."""

    @property
    def is_sound(self) -> bool:
        """Return whether there can be such an exchange."""
        is_finite = all(map(math.isfinite, self))
        return is_finite and self.came >= self.sent and self.answered >= self.received


class Reading(NamedTuple):
    """Describes another clock, as it is known at one moment of one's own."""

    offset: float
    """Seconds to be added to one's own clock."""
    bound: float
    """The most by which `offset` may be wrong, in seconds."""
    drift: float = 0.0
    """The seconds by which the offset grows in a second."""
    drift_bound: float = 0.0

    def bound_at(self, seconds: float) -> float:
        """Return the bound of the offset, grown by the drift, `seconds` from the moment."""
        return self.bound + (self.drift_bound + WANDER) * abs(seconds)


SAME = Reading(0.0, 0.0)
"""The reading of one's own clock."""


class CommonClock(NamedTuple):
    """The leader's clock, as it is known at one moment of this node's."""

    leader: str
    """The node id of the leader."""
    reading: Reading


class Region:
    """Represents the possible offsets at a moment, and drifts: a convex polygon around `base`."""

    def __init__(self, reading: Reading) -> None:
        self._base = reading.offset
        offset, drifts = (
            reading.bound,
            (
                reading.drift - reading.drift_bound,
                reading.drift + reading.drift_bound,
            ),
        )
        low, high = drifts
        self._corners: Sequence[Point] = [
            (-offset, low),
            (offset, low),
            (offset, high),
            (-offset, high),
        ]

    def cut(self, seconds: float, least: float, most: float) -> bool:
        """Limit the offset `seconds` after the moment to `least` to `most`.

        Returns whether anything remains; if not, nothing is cut.
        """
        corners = _below(self._corners, seconds, most - self._base + _ROUNDING)
        corners = _below([(-a, -r) for a, r in corners], seconds, self._base - least + _ROUNDING)
        if corners:
            self._corners = [(-a, -r) for a, r in corners]
        return bool(corners)

    @property
    def reading(self) -> Reading:
        """Return the middle of the possible values, which is in the polygon."""
        low, high = min(self._corners), max(self._corners)
        drifts = [drift for _, drift in self._corners]
        drift = (low[1] + high[1]) / 2
        return Reading(
            self._base + (low[0] + high[0]) / 2,
            (high[0] - low[0]) / 2,
            drift,
            max(max(drifts) - drift, drift - min(drifts)),
        )


def _below(corners: Sequence[Point], seconds: float, most: float) -> list[Point]:
    """Return the part of a convex polygon where offset + drift × seconds <= most.

    The algorithm is that of Sutherland and Hodgman.
    """
    found: list[Point] = []
    over = [offset + drift * seconds - most for offset, drift in corners]
    for place, (offset, drift) in enumerate(corners):
        before, here = over[place - 1], over[place]
        if (before > 0) != (here > 0):
            part = before / (before - here)
            a, r = corners[place - 1]
            found.append((a + (offset - a) * part, r + (drift - r) * part))
        if here <= 0:
            found.append((offset, drift))
    return found


class ClockEstimator:
    """Estimates another node's clock from the exchanges with it."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=_KEPT)

    def add(self, exchange: Exchange) -> None:
        """Take one that is later than all others. What cannot be is left out."""
        if exchange.is_sound:
            self._exchanges.append(exchange)

    def at(self, moment: float) -> Reading | None:
        """Return what is known of the clock at this moment of one's own; None if that is nothing.

        Exchanges that contradict later ones are of a clock that was set, or had stopped: they are
        forgotten.
        """
        held = self._exchanges
        if not held:
            return None
        region = _widest(held[-1], moment)
        for place in range(len(held) - 1, -1, -1):
            if not _cut(region, held[place], moment):
                for _ in range(place + 1):
                    held.popleft()
                break
        return region.reading if held else None


def _widest(exchange: Exchange, moment: float) -> Region:
    """Return all that is possible by one exchange, and more."""
    middle = (exchange.received - exchange.sent + exchange.answered - exchange.came) / 2
    away = max(abs(moment - exchange.sent), abs(moment - exchange.came))
    most = exchange.came - exchange.sent + 2 * (MOST_DRIFT + WANDER) * away + _ROUNDING
    return Region(Reading(middle, most, 0.0, MOST_DRIFT))


def _cut(region: Region, exchange: Exchange, moment: float) -> bool:
    sent, received, answered, came = exchange
    infinity = math.inf
    begin, end = sent - moment, came - moment
    return region.cut(begin, -infinity, received - sent + WANDER * abs(begin)) and region.cut(
        end, answered - came - WANDER * abs(end), infinity
    )
