"""Shows pictures on the alternate screen of a terminal, and restores the terminal afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"}


class Ended(BaseException):
    """Raised when a signal ends the program."""

    def __init__(self, signo: int) -> None:
        self.signo = signo


class Terminal:
    """Takes over the terminal while it is used in a `with` statement, then restores it.

    Signals that end the program raise Ended meanwhile.
    """

    def __init__(self) -> None:
        """Prepare the terminal of stdout. Without a terminal at stdin there are no keys."""
        self._out = sys.stdout.fileno()
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else -1
        self._before = termios.tcgetattr(self._keys) if self._keys >= 0 else None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Terminal:
        try:
            self._listen()
            self._undo.callback(self._leave)
            self._enter()
        except BaseException:  # Ended, too
            self._undo.close()
            raise
        return self

    def _listen(self) -> None:
        self._wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._undo.callback(os.close, self._wake)
        self._undo.callback(os.close, wakes)
        before = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._undo.callback(signal.set_wakeup_fd, before)
        handlers = {signal.SIGWINCH: _nothing, signal.SIGTSTP: self._suspend}
        for signo, handler in (*handlers.items(), *((each, _end) for each in _ENDINGS)):
            if signal.getsignal(signo) is not signal.SIG_IGN:  # nohup
                self._undo.callback(signal.signal, signo, signal.signal(signo, handler))

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def size(self) -> tuple[int, int]:
        """Return the number of columns and rows."""
        try:
            columns, rows = os.get_terminal_size(self._out)
        except OSError:
            return 80, 24
        return columns or 80, rows or 24

    def show(self, lines: Sequence[str]) -> None:
        """Replace the screen by these lines. Raises EOFError if the terminal is gone."""
        body = "\x1b[K\r\n".join(lines)
        try:
            self._write(f"\x1b[H{body}\x1b[K\x1b[J")
        except OSError:
            raise EOFError from None

    def wait(self, seconds: float) -> list[str]:
        """Return the keys pressed within `seconds`.

        The list is empty if there were none, or if the size of the terminal has changed. Raises
        EOFError if the terminal is gone.
        """
        watched = [self._wake] if self._keys < 0 else [self._wake, self._keys]
        ready, _, _ = select.select(watched, [], [], max(seconds, 0.0))
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._keys not in ready:
            return []
        try:
            typed = os.read(self._keys, 1024)
        except OSError:
            typed = b""
        if not typed:
            raise EOFError
        return list(_keys(typed.decode(errors="replace")))

    def _enter(self) -> None:
        if self._before is not None:
            tty.setcbreak(self._keys)
        self._write(_ENTER)

    def _leave(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # it may be gone
            self._write(_LEAVE)
            if self._before is not None:
                termios.tcsetattr(self._keys, termios.TCSANOW, self._before)

    def _suspend(self, signo: int, _frame: FrameType | None) -> None:
        """Suspend on Ctrl-Z, as any other program does."""
        self._leave()
        handler = signal.signal(signo, signal.SIG_DFL)
        os.kill(os.getpid(), signo)
        signal.signal(signo, handler)
        self._enter()

    def _write(self, text: str) -> None:
        left = text.encode(errors="replace")
        while left:
            left = left[os.write(self._out, left) :]


def _keys(typed: str) -> Iterator[str]:
    """Yield arrow keys by their names, other keys by what they type."""
    while typed:
        arrow = _ARROWS.get(typed[:3].replace("\x1bO", "\x1b["))
        yield arrow or typed[0]
        typed = typed[3 if arrow else 1 :]


def _nothing(_signo: int, _frame: FrameType | None) -> None:
    """Do nothing: the signal alone wakes wait()."""


def _end(signo: int, _frame: FrameType | None) -> None:
    raise Ended(signo)
