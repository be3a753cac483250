"""Who gets which node rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torshrun.rendezvous.selection import assign


def test_survivors_stay_and_newcomers_fill_the_holes() -> None:
    assert assign({"a": 0, "c": 2}, ["x"]) == ["a", "x", "c"]


def test_the_highest_fill_the_holes_if_nobody_is_new() -> None:
    assert assign({"a": 0, "c": 2, "d": 3}, []) == ["a", "d", "c"]


def test_rank_0_goes_to_somebody_who_was_there() -> None:
    assert assign({"b": 1, "c": 2}, ["x"]) == ["c", "b", "x"]


@given(
    st.dictionaries(st.text(), st.integers(-2, 20)),
    st.lists(st.integers(), unique=True, max_size=9),
)
def test_everybody_has_one_rank(survivors: dict[str, int], new: list[int]) -> None:
    newcomers = [f"{number}!" for number in new if f"{number}!" not in survivors]
    order = assign(survivors, newcomers)
    assert sorted(order) == sorted([*survivors, *newcomers])
