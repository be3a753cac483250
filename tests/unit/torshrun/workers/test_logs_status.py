"""The status line, as it looks on a screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.screen import Screen

from torshrun.workers.logs.sink import REDRAW_SECONDS, StatusLine


class Console:
    """A screen with a log and a status line, by a clock that is set by hand."""

    def __init__(self, rows: int = 6, columns: int = 40) -> None:
        self.screen = Screen(rows, columns)
        self.line = StatusLine()
        self.now = 0.0
        self.drawings = 0

    def log(self, data: bytes) -> None:
        written = self.line.around(data, self.now)
        self.drawings += written.count(b"\x1b[?7l")
        self.screen.feed(written)

    def status(self, text: bytes) -> None:
        self.line.set(text)
        self.settle()

    def settle(self) -> None:
        """Redraw when it is due, as a mover does."""
        wait = self.line.due(self.now)
        if wait is not None:
            self.now += wait
            self.log(b"")


def test_it_stands_below_the_log() -> None:
    console = Console()
    console.log(b"one\n")
    console.status(b"busy")
    console.settle()
    assert console.screen.text() == ["one", "busy"]
    console.log(b"two\n")
    console.settle()
    assert console.screen.text() == ["one", "two", "busy"]


def test_it_is_removed() -> None:
    console = Console()
    console.log(b"one\n")
    console.status(b"busy")
    console.settle()
    console.status(b"")
    assert console.screen.text() == ["one"]
    console.log(b"two\n")
    assert console.screen.text() == ["one", "two"]


@pytest.mark.parametrize("data", [b"name? ", b"50% #####\r", b"x" * 60])
@pytest.mark.parametrize("before", [b"", b"a\nb\nc\nd\ne\nf\ng\n"])
def test_what_is_unfinished_stays_as_it_is(before: bytes, data: bytes) -> None:
    console, bare = Console(), Screen()
    for piece in (before, data):
        console.log(piece)
        console.status(b"busy")
        console.settle()
    assert console.screen.text()[-1] == "busy"
    console.log(b"yes\nnext\n")
    console.status(b"")
    bare.feed(before + data + b"yes\nnext\n")
    assert console.screen.text() == bare.text()


def test_a_long_one_is_cut_and_not_wrapped() -> None:
    console = Console(columns=10)
    console.status(b"0123456789abcdef")
    console.settle()
    assert console.screen.text() == ["0123456789"]
    console.log(b"one\n")
    console.status(b"")
    assert console.screen.text() == ["one"]


def test_it_is_drawn_ten_times_a_second_at_most() -> None:
    console = Console()
    console.line.set(b"busy")
    for number in range(1000):
        console.now = number / 1000
        console.log(b"line\n")
    assert 8 <= console.drawings <= 1 / REDRAW_SECONDS + 1
    console.settle()
    assert console.screen.text()[-1] == "busy"


def test_the_same_text_is_not_drawn_again() -> None:
    console = Console()
    console.status(b"busy")
    console.settle()
    console.line.set(b"busy")
    assert console.line.due(console.now) is None


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("log"), st.sampled_from([b"a\n", b"bb", b"c\r", b"\n", b"d" * 9])),
            st.tuples(st.just("status"), st.sampled_from([b"", b"st", b"status"])),
            st.tuples(st.just("wait"), st.just(b"")),
        ),
        max_size=30,
    )
)
def test_nothing_of_it_is_left_behind(steps: list[tuple[str, bytes]]) -> None:
    console, bare = Console(3, 8), Screen(3, 8)
    for kind, data in steps:
        if kind == "log":
            console.log(data)
            bare.feed(data)
        elif kind == "status":
            console.line.set(data)
        console.now += 0.01
        if kind == "wait":
            console.now += 0.2
            console.settle()
    console.status(b"")
    assert console.screen.text() == bare.text()
