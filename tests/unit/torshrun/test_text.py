"""What others wrote, made fit for a terminal; ranges of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torshrun.text import format_ranks, printable, printable_lines, ranges

COMMANDS = {
    "colour": "\x1b[1;31m",
    "cursor": "\x1b[2A",
    "8-bit CSI": "\x9b2J",
    "title": "\x1b]0;pwned\x07",
    "title, 8-bit": "\x9d0;pwned\x9c",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x1b\\",
    "link": "\x1b]8;;http://a.b\x1b\\",
    "device control": "\x1bP$q q\x1b\\",
    "device control, 8-bit": "\x90+q544e\x9c",
    "application": "\x1b_G;\x1b\\",
    "privacy": "\x1b^x\x1b\\",
    "start of string": "\x1bXx\x1b\\",
    "character set": "\x1b(0",
    "reset": "\x1bc",
    "keypad": "\x1b=",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_to_a_terminal_are_taken_out(command: str) -> None:
    assert printable(f"a{command}b") == "ab"
    assert printable_lines(f"{command}\na{command}b\n{command}") == ["", "ab"]


@pytest.mark.parametrize("unfinished", ["\x1b]0;title", "\x9d0;title", "\x1bPq", "\x1b", "\x9b1"])
def test_of_a_command_without_an_end_its_text_stays(unfinished: str) -> None:
    shown = printable_lines(f"a{unfinished}\nthe error")
    assert shown[0].startswith("a\N{REPLACEMENT CHARACTER}")
    assert shown[1] == "the error"


def test_what_is_no_letter_leaves_a_mark_and_what_is_space_a_space() -> None:
    assert printable("a\0b\x85c\u202ed\xa0e\tf\ng") == "a\ufffdb c\ufffdd e f g"
    assert printable("naïve 日本 🙂") == "naïve 日本 🙂"


def test_a_carriage_return_leads_back_and_tabs_are_spaces() -> None:
    assert printable_lines("10%\r50%\r\n\tx\r\n\n") == ["50%", "        x"]
    assert printable_lines(" \n\n") == []


@given(st.text(alphabet=st.characters(max_codepoint=0x2FF), max_size=60))
def test_nothing_that_commands_gets_through(text: str) -> None:
    assert printable(text).isprintable()
    assert all(map(str.isprintable, printable_lines(text)))


@pytest.mark.parametrize("piece", ["\x90", "\x9d0;", "\x1b]", "\x9b1", "\x1b ", "\x1bP\x90", "\r"])
def test_starts_of_commands_without_an_end_do_not_take_long(piece: str) -> None:
    """What looks for the end of each would need hours for these."""
    assert len(printable_lines(piece * 500_000)) <= 1


def test_sequences_that_hide_in_others_do_not_get_through() -> None:
    nested = "\x1b\x1b[0m[2J\x1b]0;\x1b]0;a\x07b\x07"
    assert printable(nested).isprintable()


def test_ranges() -> None:
    assert ranges({5, 0, 1, 2}) == ["0-2", "5"]
    assert ranges(()) == []


def test_very_many_ranks_are_cut() -> None:
    assert format_ranks(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14, … (20 in all)"
    assert format_ranks([3]) == "rank 3"
