"""For how long workers have stood still, over a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from torshrun.agent.round import Round
from torshrun.agent.standstill import SECONDS, Standstill
from torshrun.health.detector import Sample
from torshrun.workers.group import WorkerGroup

ROUND = cast(Round, SimpleNamespace())


@dataclass
class Clock:
    now: float = 0.0

    def time(self) -> float:
        return self.now


class Bench(Standstill):
    """Over one worker that writes only when the test says so."""

    def __init__(self) -> None:
        self.clock, self.looks, self.output = Clock(), 0, 0
        pump = SimpleNamespace(stalled=False)
        super().__init__(cast(WorkerGroup, SimpleNamespace(loop=self.clock, pump=pump)))

    def _samples(self, a_round: Round) -> Sequence[Sample]:
        self.looks += 1
        return [Sample(rank=0, output=self.output)]

    def run_for(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.clock.now += 1
            self.tick(ROUND)


def test_who_does_nothing_stands_still_and_for_how_long_is_told_once() -> None:
    bench = Bench()
    bench.run_for(60)
    hang = bench.found(ROUND)
    assert hang is not None
    assert 50 < hang.seconds <= 60
    assert bench.found(ROUND) is None


@pytest.mark.parametrize("seconds", [0, 2, SECONDS - 2])
def test_who_has_made_progress_of_late_does_not(seconds: float) -> None:
    bench = Bench()
    bench.run_for(60)
    bench.output += 1
    bench.run_for(seconds)
    assert bench.found(ROUND) is None


def test_looks_are_few_and_none_without_a_round() -> None:
    bench = Bench()
    bench.run_for(100)
    assert bench.looks <= 25
    bench.begin()
    bench.tick(None)
    assert bench.found(None) is None
