"""How far another clock is ahead: within the bound always, and near the truth where that can be."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from torshrun.health.clocks import MOST_DRIFT, WANDER, ClockEstimator, Exchange, Reading, Region

US = 1e-6
Clock = Callable[[float], float]
"""From one's own time to the other's."""


def drifting(chance: random.Random, drift: float) -> Clock:
    offset = chance.uniform(-1e5, 1e5)
    return lambda now: now * (1 + drift) + offset


def wandering(chance: random.Random) -> Clock:
    """Its rate swings by as much as it may."""
    offset, drift = chance.uniform(-1e5, 1e5), chance.uniform(-50, 50) * US
    turn, phase = chance.uniform(0.02, 2.0), chance.uniform(0, 7)
    swing = WANDER / 2 / turn
    return lambda now: now * (1 + drift) + offset + swing * math.sin(turn * now + phase)


def exchanges(
    chance: random.Random, there: Clock, ways: tuple[float, float], count: int, outliers: float
) -> Iterator[Exchange]:
    """Eight quick ones, then one a second or so. `ways`: mean seconds more than the least of 30 us
    that the way there takes, and the way back; some take up to half a second."""
    now = chance.uniform(0, 1e6)
    for number in range(count):
        now += 0.005 if number < 8 else chance.uniform(1.0, 1.5)
        sent = now
        times = [30 * US + chance.expovariate(1 / mean) for mean in ways]
        out, back = (each + chance.uniform(0, 0.5) * (chance.random() < outliers) for each in times)
        received = now + out
        answered = received + chance.uniform(0, 100 * US)
        now = answered + back
        yield Exchange(sent, there(received), there(answered), now)


def error(reading: Reading | None, there: Clock, now: float, seconds: float = 0.0) -> float:
    """So many seconds before now, as told by what is known now."""
    assert reading is not None
    then = now - seconds
    return abs(reading.offset - reading.drift * seconds - (there(then) - then))


@pytest.mark.parametrize("kind", ["steady", "wandering"])
@pytest.mark.parametrize("seed", range(12))
def test_the_error_is_within_its_bound_whatever_messages_suffer(seed: int, kind: str) -> None:
    chance = random.Random(seed)
    there = wandering(chance)
    if kind == "steady":
        there = drifting(chance, chance.choice((-MOST_DRIFT, -50 * US, 0.0, 50 * US, MOST_DRIFT)))
    ways = chance.uniform(1, 300) * US, chance.uniform(1, 300) * US
    estimator = ClockEstimator()
    for each in exchanges(chance, there, ways, 100, outliers=0.2):
        estimator.add(each)
        now = each.came + chance.choice((0.0, 0.5, 1.25, 60.0))
        reading, ago = estimator.at(now), chance.uniform(0, 100)
        assert reading is not None
        assert error(reading, there, now) <= reading.bound
        assert error(reading, there, now, ago) <= reading.bound_at(ago)


@pytest.mark.parametrize("seed", range(8))
def test_fifty_microseconds_where_round_trips_allow(seed: int) -> None:
    """The clocks drift by 50 ppm, and the way back has four times the jitter of the way there."""
    chance = random.Random(seed)
    there = drifting(chance, chance.choice((-50, 50)) * US)
    estimator = ClockEstimator()
    for number, each in enumerate(exchanges(chance, there, (10 * US, 40 * US), 64, outliers=0.1)):
        estimator.add(each)
        reading = estimator.at(each.came)
        if number >= 16:
            assert error(reading, there, each.came) <= 50 * US
    assert reading is not None
    assert abs(reading.drift) == pytest.approx(50 * US, abs=20 * US)
    assert reading.bound <= 100 * US


def test_a_clock_that_was_set_is_followed_at_once() -> None:
    chance = random.Random(1)
    estimator, last = ClockEstimator(), None
    for ahead in (100.0, 3700.0):  # the other node slept meanwhile
        for number in range(20):
            now = ahead + number
            last = Exchange(now, now + ahead, now + ahead, now + chance.uniform(40, 50) * US)
            estimator.add(last)
        reading = estimator.at(now)
        assert reading is not None
        assert reading.offset == pytest.approx(ahead, abs=reading.bound)
        assert reading.bound < 60 * US


@pytest.mark.parametrize(
    "each",
    [
        Exchange(math.nan, 1, 1, 2),
        Exchange(0, math.inf, math.inf, 1),
        Exchange(0, 2, 1, 3),
        Exchange(3, 1, 1, 2),
    ],
)
def test_what_cannot_be_is_left_out(each: Exchange) -> None:
    estimator = ClockEstimator()
    assert estimator.at(0.0) is None
    estimator.add(each)
    assert estimator.at(0.0) is None


def test_a_contradiction_cuts_nothing() -> None:
    region = Region(Reading(10.0, 1.0, 0.0, 0.1))
    assert region.cut(0.0, 9.5, 10.5)
    assert not region.cut(0.0, 11.0, 12.0)
    reading = region.reading
    assert (reading.offset, reading.bound) == (10.0, pytest.approx(0.5))
    assert region.cut(10.0, 10.0, 10.0)  # where it is ten seconds later bounds the drift, too
    assert region.reading.drift_bound == pytest.approx(0.05)
