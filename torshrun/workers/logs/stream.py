"""One worker's stdout or stderr, on its way to wherever it goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from torshrun.workers.logs.lines import Printer
from torshrun.workers.logs.prefix import stamp
from torshrun.workers.logs.source import Source

TAIL_BYTES = 65536
"""How much of the end of stderr is remembered for reports."""


class Tap(Protocol):
    """Something that gets every byte of a stream."""

    def feed(self, data: bytes, stamp: bytes, /) -> None:
        """Take what was read, and the time to put before its lines, if any."""

    def close(self) -> None:
        """The stream is over."""


class Tail:
    """A tap that remembers the end of a stream. Any thread may look."""

    def __init__(self) -> None:
        self.data = b""
        """The last TAIL_BYTES that were read."""

    def feed(self, data: bytes, _: bytes) -> None:
        """Take what was read."""
        recent = data if len(data) >= TAIL_BYTES else self.data + data
        self.data = recent[-TAIL_BYTES:]

    def close(self) -> None:
        """Nothing is held back."""


class Stream:
    """Used by a mover's thread only, but for `received`."""

    def __init__(
        self,
        source: Source,
        taps: tuple[Tap, ...],
        printer: Printer | None,
        clock: Callable[[], float] | None,
    ) -> None:
        self.source = source
        self.printer = printer
        """What shows it on the console; None if nothing does."""
        self.received = 0
        """Bytes read so far."""
        self._taps = taps
        self._clock = clock

    def feed(self, data: bytes, now: float) -> None:
        """Pass on what was read. Files come first: a console may take its time."""
        self.received += len(data)
        time = stamp(self._clock()) if self._clock else b""
        for tap in self._taps:
            tap.feed(data, time)
        if self.printer is not None:
            self.printer.feed(data, now, time)

    def close(self) -> None:
        """Pass on what is held back, and close the files and the reading end."""
        for tap in self._taps:
            tap.close()
        os.close(self.source.fd)
        if self.printer is not None:
            self.printer.flush()
