"""Where a worker's stream is read from: a pipe, or a pseudo-terminal where a person looks on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

CHUNK = 65536
"""Bytes read at once."""
PTY_BYTES = 131072
"""More than a pseudo-terminal holds."""


class Pipe:
    """A pipe, whose writing end is for the worker."""

    def __init__(self) -> None:
        self.fd, self.end = os.pipe()
        os.set_blocking(self.fd, False)

    def read(self) -> bytes:
        """What is there, CHUNK bytes at most; nothing at the end. Raises BlockingIOError."""
        return os.read(self.fd, CHUNK)

    def capacity(self) -> int:
        """Bytes that may be waiting in it."""
        return fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ)

    def resize(self) -> None:
        """A pipe has no window."""


class Pty:
    """A pseudo-terminal that changes no byte, with a window as wide as the real terminal's, less
    the prefix. It is nobody's controlling terminal.
    """

    def __init__(self, real: int, prefix_width: int) -> None:
        import tty

        self._real = real
        self._prefix_width = prefix_width
        self.fd, self.end = os.openpty()
        tty.setraw(self.end)
        os.set_blocking(self.fd, False)
        self.resize()

    def read(self) -> bytes:
        """As from a pipe. It comes in small pieces, which are put together."""
        pieces: list[bytes] = []
        size = 0
        try:
            while size < CHUNK:
                piece = os.read(self.fd, CHUNK - size)
                if not piece:
                    break
                pieces.append(piece)
                size += len(piece)
        except BlockingIOError:
            if not pieces:
                raise
        except OSError as error:  # EIO: all its writers have ended
            if error.errno != errno.EIO:
                raise
        return b"".join(pieces)

    def capacity(self) -> int:
        """Bytes that may be waiting in it."""
        return PTY_BYTES

    def resize(self) -> None:
        """Follow the real terminal's window."""
        import termios

        try:
            rows, columns = termios.tcgetwinsize(self._real)
        except termios.error:  # it has gone
            return
        if columns:
            termios.tcsetwinsize(self.fd, (rows, max(1, columns - self._prefix_width)))


Source = Pipe | Pty


def open_source(real: int, prefix_width: int) -> Source:
    """A pseudo-terminal if `real` is a terminal, unless this machine has none left."""
    if os.isatty(real):
        with contextlib.suppress(OSError):
            return Pty(real, prefix_width)
    return Pipe()
