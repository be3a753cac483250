"""A small terminal, to see what a person would: rows of text, scrolling at the bottom."""

from __future__ import annotations

import re

_UNFINISHED = re.compile(rb"\x1b(\[[?0-9;]*)?\Z")
_TOKENS = re.compile(rb"\x1b\[[?0-9;]*[A-Za-z]|\x1b[78DM]|[\x00-\x1f]|[^\x00-\x1f]+")
_NAMES = {b"?7": "wraps", b"?25": "cursor", b"?1049": "other"}
_SWITCHES = {
    b"\x1b[" + number + letter: name for number, name in _NAMES.items() for letter in (b"h", b"l")
}


class Screen:
    """Understands what the log and its status line write; other sequences are an error."""

    def __init__(self, rows: int = 6, columns: int = 40) -> None:
        self.rows = [""] * rows
        self.scrolled: list[str] = []
        """Rows that have left at the top."""
        self._columns = columns
        self._row = self._column = 0
        self._saved = (0, 0)
        self._wraps = True
        self._main: list[str] | None = None  # its rows, while the other screen is shown
        self.shows_cursor = True
        self._rest = b""  # of a control sequence that came in two pieces

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        cut = _UNFINISHED.search(data)
        end = cut.start() if cut else len(data)
        data, self._rest = data[:end], data[end:]
        for token in _TOKENS.findall(data):
            if token[0] >= 32:
                self._put(token.decode("utf-8", "replace"))
            elif token == b"\n":
                self._down(scroll=True)
                self._column = 0  # as a real terminal's driver does
            elif token == b"\r":
                self._column = 0
            elif token[0] == 27:
                self._control(token)

    def text(self) -> list[str]:
        """All rows down to the last one with text."""
        rows = [row.rstrip() for row in [*self.scrolled, *self.rows]]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _control(self, token: bytes) -> None:
        if token in _SWITCHES:
            self._switch(_SWITCHES[token], is_on=token.endswith(b"h"))
        elif token in (b"\x1b[2K", b"\x1b[K", b"\x1b[J"):
            self._erase(token)
        elif token == b"\x1bD":
            self._down(scroll=True)
        elif token == b"\x1b[B":
            self._down(scroll=False)
        elif token == b"\x1b[A":
            self._row = max(0, self._row - 1)
        elif token == b"\x1b[H":
            self._row = self._column = 0
        elif token == b"\x1b7":
            self._saved = (self._row, self._column)
        elif token == b"\x1b8":
            self._row, self._column = self._saved
        elif not token.endswith(b"m"):  # colours
            raise AssertionError(f"unknown control sequence {token!r}")

    def _erase(self, token: bytes) -> None:
        kept = 0 if token == b"\x1b[2K" else self._column
        self.rows[self._row] = self.rows[self._row][:kept]
        if token == b"\x1b[J":
            self.rows[self._row + 1 :] = [""] * (len(self.rows) - self._row - 1)

    def _switch(self, what: str, *, is_on: bool) -> None:
        if what == "wraps":
            self._wraps = is_on
        elif what == "cursor":
            self.shows_cursor = is_on
        elif is_on and self._main is None:
            self._main, self.rows = self.rows, [""] * len(self.rows)
        elif not is_on and self._main is not None:
            self.rows, self._main = self._main, None

    @property
    def is_other(self) -> bool:
        """Whether it is the one that full-screen programs use."""
        return self._main is not None

    def _put(self, text: str) -> None:
        for character in text:
            if self._column == self._columns:
                if not self._wraps:
                    return
                self._down(scroll=True)
                self._column = 0
            row = self.rows[self._row].ljust(self._column)
            self.rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
            self._column += 1

    def _down(self, *, scroll: bool) -> None:
        if self._row < len(self.rows) - 1:
            self._row += 1
        elif scroll:
            gone = self.rows.pop(0)
            self.rows.append("")
            if self._main is None:  # the other screen keeps none
                self.scrolled.append(gone)
