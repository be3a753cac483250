"""When workers are started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torshrun.rendezvous.restart import (
    LONGEST_PAUSE,
    STABLE_SECONDS,
    History,
    following,
    judge,
    pause,
)


@pytest.mark.parametrize(
    ("streak", "seconds"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (7, 32), (8, 60), (9999, 60)]
)
def test_pauses_double_up_to_a_minute(streak: int, seconds: float) -> None:
    assert pause(1.0, History(streak=streak), 0.5) == seconds


@given(streak=st.integers(2, 50), chance=st.floats(0, 1, exclude_max=True))
def test_a_pause_varies_by_a_quarter(streak: int, chance: float) -> None:
    planned = pause(1.0, History(streak=streak), 0.5)
    assert 0.75 * planned <= pause(1.0, History(streak=streak), chance) <= 1.25 * planned
    assert planned <= LONGEST_PAUSE


def test_without_backoff_there_is_no_pause() -> None:
    assert pause(0.0, History(streak=9), 0.9) == 0


def test_a_round_that_lasted_ends_the_streak() -> None:
    history = History(restarts=4, streak=4, startup="a")
    assert following(history, "", STABLE_SECONDS).streak == 0
    assert following(history, "", 1.0) == History(restarts=5, streak=5)


def test_the_judgement() -> None:
    assert judge(0, History(), "a") == "no budget"
    assert judge(3, History(), "a") == "restart"
    assert judge(3, History(startup="a", restarts=1), "a") == "same start"
    assert judge(3, History(startup="a", restarts=3), "a") == "budget spent"
    assert judge(3, History(), unkillable=True) == "unkillable"
