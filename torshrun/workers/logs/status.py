"""The line below the log on a terminal: drawn, and out of the way before the log goes on.

The cursor always rests where the log ends. After a newline that is the first column, and the
status stands on that very row; behind an unfinished line or a carriage return it stands one row
further down, so that it disturbs neither.
"""

from __future__ import annotations

REDRAW_SECONDS = 0.1
"""Time between two drawings at least."""
_NO_WRAP = b"\x1b[?7l%b\x1b[0m\x1b[?7h\r"
_ERASE_HERE = b"\x1b[2K"
_MAKE_ROW = b"\x1bD\x1b[A"  # scrolls if this is the last row; the column stays
_BELOW = b"\x1b7\x1b[B\r%b\x1b8"
_ERASE_BELOW = b"\x1b[B\x1b[2K\x1b[A"


class StatusLine:
    """Pure: what to write, given what is written. Used by one thread only."""

    def __init__(self) -> None:
        self._text = b""
        self._eraser = b""  # removes what is drawn; empty when nothing is
        self._stale = False  # what is drawn is not what should be
        self._drawn_at = -REDRAW_SECONDS
        self._at_line_start = True

    def set(self, text: bytes) -> None:
        if text != self._text:
            self._text, self._stale = text, True

    def around(self, data: bytes, now: float) -> bytes:
        """What to write instead: the status is erased, and drawn again unless it just was."""
        out, self._eraser = self._eraser + data, b""
        if data:
            self._at_line_start = data.endswith(b"\n")
        self._stale = bool(self._text)
        return out + self._draw(now) if self._stale and self._wait(now) == 0 else out

    def due(self, now: float) -> float | None:
        """Seconds until it has to be drawn or removed; None if it need not be."""
        if not self._stale:
            return None
        return self._wait(now) if self._text else 0.0

    def _wait(self, now: float) -> float:
        return max(0.0, self._drawn_at + REDRAW_SECONDS - now)

    def _draw(self, now: float) -> bytes:
        self._drawn_at, self._stale = now, False
        line = _NO_WRAP % self._text
        if self._at_line_start:
            self._eraser = _ERASE_HERE
            return line
        self._eraser = _ERASE_BELOW
        return _MAKE_ROW + _BELOW % line
