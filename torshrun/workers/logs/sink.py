"""Writes lines of many authors to an output of the agent, and a status line below them on
terminals.

The cursor always rests where the log ends. After a newline that is the first column, and the status
is drawn on that very row. After an unfinished line or a carriage return it is drawn one row further
down, so that it disturbs neither.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

PIECE = 65536
"""Bytes that are written at once."""
CLEAR_LINE = b"\x1b[K"
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
        """Return what to write instead of `data`.

        The status is erased, and drawn again if it is due.
        """
        out, self._eraser = self._eraser + data, b""
        if data:
            self._at_line_start = data.endswith(b"\n")
        self._stale = bool(self._text)
        return out + self._draw(now) if self._stale and self._wait(now) == 0 else out

    def due(self, now: float) -> float | None:
        """Return the seconds until it must be drawn or removed; None if it need not be."""
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


class Sink:
    """Used by one thread only, but for write_now()."""

    def __init__(self, name: str, fd: int, complain: Callable[[str], None]) -> None:
        self.name = name
        """stdout or stderr."""
        self.fd = fd
        self.is_terminal = os.isatty(fd)
        self.unfinished: object | None = None
        """Whose unfinished line stands at the end; None after a line's end."""
        self.last: object | None = None
        self.written = 0
        """Bytes written, ever."""
        self.lost = ""
        """Why nothing can be written any more; "" while something can."""
        self.status: StatusLine | None = None
        """The line below the log; None if there is none to be."""
        self._complain = complain
        self._after_return = False

    def lead(self, author: object) -> bytes:
        """Return what must precede a new line of this author."""
        if self.unfinished is not None:
            return b"\n"
        if self._after_return and self.is_terminal and self.last is not author:
            return CLEAR_LINE  # or another's longer progress bar would show behind it
        return b""

    def write(self, data: bytes) -> None:
        """Write all of it, however long that takes. Does nothing once the reader is gone."""
        if data:
            self._after_return = data.endswith(b"\r")
        if self.status is not None:
            data = self.status.around(data, time.monotonic())
        view = memoryview(data)
        while view and not self.lost:
            try:
                count = os.write(self.fd, view[:PIECE])
            except BlockingIOError:
                _is_writable(self.fd, None)
            except OSError as error:
                self.lost = error.strerror or str(error)
                self._complain(
                    f"cannot write what workers say on {self.name} ({self.lost}): the rest of it "
                    f"is dropped, and the job goes on; SIGINT (Ctrl-C) ends it"
                )
            else:
                self.written += count
                view = view[count:]

    def write_line(self, data: bytes) -> None:
        self.write(self.lead(None) + data)
        self.unfinished = self.last = None

    def write_now(self, data: bytes) -> None:
        """Write it from any thread, as far as that is possible at once."""
        if _is_writable(self.fd, 0):
            self.write(data)

    def refresh(self) -> float | None:
        """Redraw the status line if it is due; otherwise the seconds until it is, if it will be."""
        wait = self.status.due(time.monotonic()) if self.status else None
        if wait != 0:
            return wait
        self.write(b"")
        return None


def _is_writable(fd: int, milliseconds: int | None) -> bool:
    poll = select.poll()  # and not select(), which knows 1,024 descriptors
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(milliseconds))
