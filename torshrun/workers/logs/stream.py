"""Carries a worker's stdout, stderr or both from where it is read to where it goes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass

from torshrun.workers.logs.files import LogFile
from torshrun.workers.logs.lines import LineHolder, stamp

TAIL_BYTES = 65536
"""Bytes of the end of stderr that are remembered for reports."""
CHUNK = 65536
"""Bytes read at once."""
PTY_BYTES = 131072
"""More than a pseudo-terminal holds."""


class Source:
    """A pipe, whose writing end is for the worker. Where `real` is a terminal, a pseudo-terminal
    that changes no byte, as wide as that one less the prefix, unless this machine has none left.
    """

    def __init__(self, real: int = -1, prefix_width: int = 0) -> None:
        self._real, self._prefix_width = -1, prefix_width
        self.fd, self.end = self._open(real)
        os.set_blocking(self.fd, False)
        self.resize()

    def read(self) -> bytes:
        """Return what can be read now, CHUNK bytes at most; b"" at the end.

        Raise BlockingIOError if there is nothing to read yet.
        """
        data = b""
        try:  # a pseudo-terminal gives small pieces
            while len(data) < CHUNK and (piece := os.read(self.fd, CHUNK - len(data))):
                data += piece
        except BlockingIOError:
            if not data:
                raise
        except OSError as error:  # EIO: all writers of a pseudo-terminal have ended
            if error.errno != errno.EIO:
                raise
        return data

    def capacity(self) -> int:
        """Return how many bytes may be waiting in it."""
        return PTY_BYTES if self._real >= 0 else fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ)

    def resize(self) -> None:
        """Follow the real terminal's window; a pipe has none."""
        if self._real < 0:
            return
        import termios

        with contextlib.suppress(termios.error):  # it has gone
            rows, columns = termios.tcgetwinsize(self._real)
            if columns:
                termios.tcsetwinsize(self.fd, (rows, max(1, columns - self._prefix_width)))

    def _open(self, real: int) -> tuple[int, int]:
        if os.isatty(real):
            import tty

            with contextlib.suppress(OSError):
                ends = os.openpty()
                tty.setraw(ends[1])
                self._real = real
                return ends
        return os.pipe()


Tap = LogFile | LineHolder
"""Gets every byte of a stream, with the time to put before its lines, if any."""


@dataclass(eq=False)
class Stream:
    """Used by a mover's thread only, but for `received` and `tail`, which any may look at."""

    source: Source
    taps: tuple[Tap, ...]
    """Files come first: a console may take its time."""
    printer: LineHolder | None
    """Tap that shows the stream on the console; None if none does."""
    clock: Callable[[], float] | None
    """Returns the time that precedes its lines; None if none does."""
    tail: bytes | None
    """The last TAIL_BYTES read, of which some may still be on their way; None: not remembered."""
    received: int = 0
    """Bytes read so far."""

    def feed(self, data: bytes, now: float) -> None:
        """Pass on what was read."""
        self.received += len(data)
        if self.tail is not None:
            recent = data if len(data) >= TAIL_BYTES else self.tail + data
            self.tail = recent[-TAIL_BYTES:]
        time = stamp(self.clock()) if self.clock else b""
        for tap in self.taps:
            tap.feed(data, time, now)

    def close(self) -> None:
        """Pass on what is held back, and close the files and the reading end."""
        os.close(self.source.fd)
        for tap in self.taps:
            tap.close()
