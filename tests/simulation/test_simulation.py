"""A short form of `run.py`: the production handlers under a seeded scheduler."""

from __future__ import annotations

import pytest
from simulation.job import Plan, play


@pytest.mark.parametrize("agents", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_invariants_hold(agents: int, seed: int) -> None:
    result = play(Plan(seed=seed, agents=agents))
    assert not result.violation, "\n".join([*result.history, result.violation])


def test_without_faults_one_round_is_formed_and_ends_well() -> None:
    result = play(Plan(seed=1, agents=200, faults=0, seconds=1.0))
    assert not result.violation
    assert result.rounds == 0  # after the first


def test_a_run_can_be_had_again() -> None:
    assert play(Plan(seed=5, agents=5)).history == play(Plan(seed=5, agents=5)).history
