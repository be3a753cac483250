"""Lines in a flow of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torshrun.workers.logs.lines import LineStamper, insert_prefix, spare_prefix


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\n", b"a\n"),
        (b"a", b"a"),
        (b"a\nb\n", b"a\n> b\n"),
        (b"a\nb", b"a\n> b"),
        (b"1%\r2%\r", b"1%\r> 2%\r"),
        (b"a\r\nb\r\n", b"a\r\n> b\r\n"),
        (b"\n\n", b"\n> \n"),
        (b"\xff\xfe\n\x00\n", b"\xff\xfe\n> \x00\n"),
    ],
)
def test_prefixes_stand_after_line_ends_inside(data: bytes, expected: bytes) -> None:
    assert insert_prefix(data, b"> ") == expected
    assert insert_prefix(data, b"") == data


def test_times_stand_before_each_line() -> None:
    stamper = LineStamper()
    assert stamper.mark(b"a\nb", b"T1 ") == b"T1 a\nT1 b"
    assert stamper.mark(b"c\n", b"T2 ") == b"c\n"
    assert stamper.mark(b"d\r", b"T3 ") == b"T3 d\r"
    assert stamper.mark(b"\ne", b"T4 ") == b"\nT4 e"


@given(st.lists(st.text("ab\r\n", min_size=1), max_size=8))
def test_pieces_make_no_difference(texts: list[str]) -> None:
    pieces = [text.encode() for text in texts]
    stamper = LineStamper()
    whole = LineStamper().mark(b"".join(pieces), b"> ")
    assert b"".join(stamper.mark(piece, b"> ") for piece in pieces) == whole
    assert whole.replace(b"> ", b"") == b"".join(pieces)


@pytest.mark.parametrize(
    ("data", "begins_line", "expected"),
    [
        (b"\x1b[2Kbar", True, b"\x1b[Kbar"),
        (b"\x1b[2Kbar", False, b"\x1b[2Kbar"),  # what stands there is the worker's own
        (b"\r\x1b[2Kbar\r\x1b[2Kbar", False, b"\r\x1b[Kbar\r\x1b[Kbar"),
        (b"text\x1b[2Kbar", True, b"text\x1b[2Kbar"),
        (b"bar", True, b"bar"),
    ],
)
def test_a_bar_that_erases_its_line_leaves_the_prefix(
    data: bytes, begins_line: bool, expected: bytes
) -> None:
    assert spare_prefix(data, begins_line) == expected
