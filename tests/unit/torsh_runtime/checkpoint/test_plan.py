"""Who writes what of a checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.checkpoint.plan import Held, check_whole, share_out
from torsh_runtime.errors import CheckpointError
from torsh_runtime.layout import Piece

SIZES = {"float32": 4, "int64": 8}


def whole(name: str, size: int) -> Held:
    return Held(name, "float32", Piece.whole((size,)))


def part(name: str, size: int, start: int, end: int) -> Held:
    return Held(name, "float32", Piece((size,), (0,), (size,), start, end))


def test_what_all_have_is_written_once_and_evenly() -> None:
    held = [whole(f"{n}", 10) for n in range(12)]
    shares = share_out([held] * 4, SIZES)
    assert [len(share) for share in shares] == [3, 3, 3, 3]
    assert {each for share in shares for each in share} == {*held}


def test_who_has_much_of_its_own_writes_less_of_what_all_have() -> None:
    own = part("split", 100, 0, 90), part("split", 100, 90, 100)
    common = [whole("a", 40), whole("b", 40)]
    shares = share_out([[own[0], *common], [own[1], *common]], SIZES)
    assert shares == [[own[0]], [own[1], *common]]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(1, 6))
def test_every_element_is_written_by_somebody_who_has_it(sizes: list[int], ranks: int) -> None:
    held: list[list[Held]] = [[] for _ in range(ranks)]
    for number, size in enumerate(sizes):
        for rank in range(ranks):
            if number % 2:
                held[rank].append(whole(f"{number}", size))
            else:
                cuts = size * rank // ranks, size * (rank + 1) // ranks
                held[rank].append(part(f"{number}", size, *cuts))
    shares = share_out(held, SIZES)
    for own, share in zip(held, shares, strict=True):
        assert {*share} <= {*own}
    for number, size in enumerate(sizes):
        written = [each for share in shares for each in share if each.name == f"{number}"]
        assert sum(each.piece.size for each in {*written}) == size
        assert len(written) == len({*written})


def test_ranks_that_differ_are_told_in_what() -> None:
    with pytest.raises(CheckpointError, match=r"'a' is float32 of shape \(3,\) on rank 0 and "):
        check_whole([[whole("a", 3)], [whole("a", 4)]])


def test_elements_that_nobody_has_are_an_error() -> None:
    with pytest.raises(CheckpointError, match="only 3 of the 5 elements of 'a'"):
        check_whole([[part("a", 5, 0, 1)], [part("a", 5, 3, 5)]])
