"""Steps of one rank, summed up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from torsh_runtime.monitoring.analysis import Breakdown
from torsh_runtime.monitoring.summing import summary_of


def own(works: Sequence[float]) -> float:
    steps = [
        Breakdown(0, at, at, at + work, work, 0.0, 0.0, 0.0, 0.0, {}, {})
        for at, work in enumerate(works)
    ]
    return summary_of(steps, []).own


@pytest.mark.parametrize("count", [6, 12, 30])
def test_a_step_in_ten_with_an_evaluation_does_not_make_a_rank_slow(count: int) -> None:
    works = [0.3 if at % 10 == 5 else 0.03 for at in range(count)]
    assert own(works) == pytest.approx(0.03)


@pytest.mark.parametrize("count", [6, 12, 30])
def test_a_step_in_three_does(count: int) -> None:
    works = [0.06 if at % 3 == 0 else 0.03 for at in range(count)]
    assert own(works) == pytest.approx(0.04)


def test_of_few_steps_each_counts() -> None:
    assert own([0.03, 0.03, 0.06]) == pytest.approx(0.04)
    assert own([0.03, 0.03, 9.0]) == pytest.approx(0.05)
