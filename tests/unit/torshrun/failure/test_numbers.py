"""Numbers that ranks write: whose was none first, and whether they grew."""

from __future__ import annotations

import pytest

from torshrun.failure.numbers import Numbers, first_of, numbers_in

FINITE = ["step 0 loss=1.5", "step 1 loss=1.25", "step 2 loss=1.0"]


def test_the_line_with_a_number_that_is_none_is_told_with_how_many_came_before() -> None:
    found = numbers_in(["epoch 3 begins", *FINITE[:2], "step 2 loss=nan", "step 3 loss=nan"])
    assert found is not None
    assert (found.finite, found.line, found.grows) == (2, "step 2 loss=nan", False)
    still = numbers_in(FINITE)
    assert still is not None
    assert (still.form, still.finite, still.line) == (found.form, 3, "")


@pytest.mark.parametrize(
    "line",
    [
        '{"rank": 1, "loss": NaN}',
        "loss: -inf, lr: 0.1",
        "loss=Infinity",
        "grad norm inf at step 3",
    ],
)
def test_words_for_numbers_that_are_none(line: str) -> None:
    found = numbers_in([line])
    assert found is not None
    assert found.line == line


@pytest.mark.parametrize("line", ["nanny is in", "info: ready", "1 2 3", "reading banana.txt", ""])
def test_what_is_none_of_these_words(line: str) -> None:
    found = numbers_in([line])
    assert found is None or not found.line


@pytest.mark.parametrize(
    ("losses", "grows"),
    [
        (["1.5", "9.9e13", "3.7e27"], True),
        (["1.0", "1.5", "30.0", "900.5", "45000.0"], True),
        (["1.5", "9.9e13"], False),
        (["900.0", "30.0", "1.0"], False),
        (["1.0", "1.1", "1.2"], False),
        (["1", "100", "10000"], False),
    ],
)
def test_numbers_grow_if_each_is_many_times_the_one_before(losses: list[str], grows: bool) -> None:
    found = numbers_in([f"[0] loss {loss}" for loss in losses])
    assert found is not None
    assert found.grows == grows


def test_who_has_none_in_a_line_in_which_all_others_have_one_is_the_first() -> None:
    having = Numbers(form="a", finite=4, line="loss nan")
    assert first_of({0: Numbers(form="a", finite=5), 1: having}) == 1
    later = Numbers(form="a", finite=5, line="loss nan")
    assert first_of({0: later, 1: having, 2: later}) == 1
    for others in (
        {0: Numbers(form="a", finite=4)},  # it may only have come first to that line
        {0: Numbers(form="b", finite=5)},
        {0: None},
        {0: having},
        {},
    ):
        assert first_of({**others, 1: having}) is None
