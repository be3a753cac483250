"""When workers are started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torshrun.agent.protocol import Attempt, Diagnosed, Policy
from torshrun.agent.restart import LONGEST_PAUSE, STABLE_SECONDS, following, judge, pause

POLICY = Policy(ranks=frozenset({0}), max_restarts=3, grace=1.0, backoff=1.0)


@pytest.mark.parametrize(
    ("streak", "seconds"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (7, 32), (8, 60), (9999, 60)]
)
def test_pauses_double_up_to_a_minute(streak: int, seconds: float) -> None:
    assert pause(POLICY, Attempt(streak=streak), 0.5) == seconds


@given(streak=st.integers(2, 50), chance=st.floats(0, 1, exclude_max=True))
def test_a_pause_varies_by_a_quarter(streak: int, chance: float) -> None:
    planned = pause(POLICY, Attempt(streak=streak), 0.5)
    assert 0.75 * planned <= pause(POLICY, Attempt(streak=streak), chance) <= 1.25 * planned
    assert planned <= LONGEST_PAUSE


def test_without_backoff_there_is_no_pause() -> None:
    policy = Policy(ranks=frozenset({0}), max_restarts=3, grace=1.0)
    assert pause(policy, Attempt(streak=9), 0.9) == 0


def test_a_round_that_lasted_ends_the_streak() -> None:
    attempt = Attempt(round=4, restarts=4, streak=4, startup="a")
    assert following(attempt, Diagnosed(4, 1, seconds=STABLE_SECONDS)).streak == 0
    assert following(attempt, Diagnosed(4, 1, seconds=1)).streak == 5


def test_the_judgement() -> None:
    failed = Diagnosed(0, 1, startup="a")
    none = Policy(ranks=frozenset({0}), max_restarts=0, grace=1.0)
    assert judge(none, Attempt(), failed) == "no budget"
    assert judge(POLICY, Attempt(), failed) == "restart"
    assert judge(POLICY, Attempt(startup="a", restarts=1), failed) == "same start"
    assert judge(POLICY, Attempt(startup="a", restarts=3), failed) == "budget spent"
    assert judge(POLICY, Attempt(), Diagnosed(0, 1, unkillable=("7",))) == "unkillable"
