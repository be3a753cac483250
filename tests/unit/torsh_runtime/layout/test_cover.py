"""cover: each element once, or an error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Piece, cover


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    spans = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in (4, 3, 5)]
    shape = tuple(last - first for first, last in spans)
    size = int(np.prod(shape))
    start, end = sorted((draw(st.integers(0, size)), draw(st.integers(0, size))))
    return Piece((4, 3, 5), tuple(first for first, _ in spans), shape, start, end)


def elements(piece: Piece) -> list[int]:
    return [run.number + n for run in piece.runs() for n in range(run.length)]


@given(pieces(), st.lists(pieces(), max_size=8))
def test_each_element_once_or_an_error(ours: Piece, others: list[Piece]) -> None:
    wanted, there = elements(ours), [elements(each) for each in others]
    assert len(wanted) == ours.size
    if {*wanted} - {number for own in there for number in own}:
        with pytest.raises(ConfigError, match="is in none of"):
            list(cover(ours, others))
        return
    found = [
        there[place][at + n]
        for place, (_, at, length) in cover(ours, others)
        for n in range(length)
    ]
    assert found == wanted


def test_a_box_of_absurd_size_takes_no_time() -> None:
    rows = 1 << 40
    piece = Piece((rows, 2), (0, 0), (rows, 1), rows - 1, rows)
    assert list(piece.runs()) == [(2 * (rows - 1), 0, 1)]
