"""Splits a flow of bytes into lines, and precedes each with the worker's prefix and the time.

A newline or a carriage return ends a line; \\r\\n ends one only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from string import Template

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig
from torshrun.workers.logs.sink import CLEAR_LINE, Sink

LONGEST = 65536
"""Bytes of an unfinished line that are held back at most."""
ENDS = (b"\n", b"\r")
_ERASE_LINE = b"\x1b[2K"
PALETTE = (31, 166, 65, 133, 130, 62, 29, 161, 98, 94, 67, 131)
"""Codes of the 256 colours that can be read on black and on white. Ranks take them in turn."""
STAMP_WIDTH = len("2025-01-31T12:34:56.789Z ")


def insert_prefix(data: bytes, prefix: bytes) -> bytes:
    """Return `data` with the prefix after each line end inside it, not at its beginning or end."""
    if not prefix:
        return data
    if b"\r" in data:
        data = data.replace(b"\r", b"\r" + prefix).replace(b"\r" + prefix + b"\n", b"\r\n")
    data = data.replace(b"\n", b"\n" + prefix)
    ended = data.endswith((b"\n" + prefix, b"\r" + prefix))
    return data[: len(data) - len(prefix)] if ended else data


def spare_prefix(data: bytes, begins_line: bool) -> bytes:
    """Return `data` in which the prefix survives a terminal's order to erase a whole line.

    At the head of a line, where the prefix will be, the order becomes one to erase the rest of the
    line, as progress bars of rich mean it.
    """
    if begins_line and data.startswith(_ERASE_LINE):
        data = CLEAR_LINE + data.removeprefix(_ERASE_LINE)
    for end in ENDS:
        data = data.replace(end + _ERASE_LINE, end + CLEAR_LINE)
    return data


class LineStamper:
    """Puts a time before each line of a flow that is passed on without holding anything back."""

    def __init__(self) -> None:
        self._last = b"\n"

    def mark(self, data: bytes, stamp: bytes) -> bytes:
        """Return `data` with the time before each line that begins in it."""
        head = b""
        if self._last == b"\r" and data.startswith(b"\n"):  # the other half of a \r\n
            head, data = b"\n", data[1:]
        if data and self._last in ENDS:
            head += stamp
        self._last = data[-1:] or head
        return head + insert_prefix(data, stamp)


class LineHolder:
    """Holds back what is unfinished of one stream's lines. For one thread only."""

    def __init__(self) -> None:
        self.partial = b""
        """The unfinished line in hand."""
        self.since = 0.0
        """When it was begun, by the caller's clock."""
        self._stamp = b""  # of its beginning

    def feed(self, data: bytes, stamp: bytes, now: float = 0.0) -> None:
        """Emit whole lines, hold back the rest. `stamp` is for those that begin in `data`."""
        if self.partial:
            data = self.partial + data
        else:
            self.since, self._stamp = now, stamp
        cut = max(map(data.rfind, ENDS)) + 1
        self.partial = data[cut:]
        if cut:
            self._emit(data[:cut], stamp)
            self.since, self._stamp = now, stamp
        if len(self.partial) >= LONGEST:
            self.close()

    def close(self) -> None:
        """Emit what is held back; more may follow."""
        if self.partial:
            data, self.partial = self.partial, b""
            self._emit(data, self._stamp)

    def _emit(self, data: bytes, stamp: bytes) -> None:
        """Take lines, of which the first begins with _stamp and the others with `stamp`."""
        raise NotImplementedError


class Printer(LineHolder):
    """Passes one stream's whole lines on to a sink, each behind its prefix and its time."""

    def __init__(self, sink: Sink, prefix: bytes) -> None:
        super().__init__()
        self._sink = sink
        self._prefix = prefix
        self._after_return = False

    def _emit(self, data: bytes, stamp: bytes) -> None:
        sink = self._sink
        if self._after_return and data.startswith(b"\n"):  # the other half of a \r\n
            if sink.last is self:
                sink.write(b"\n")
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if data:
            lead = sink.lead(self)
            if sink.is_terminal and self._prefix:
                data = spare_prefix(data, sink.unfinished is not self)
            head = b"" if sink.unfinished is self else lead + self._prefix + self._stamp
            sink.write(head + insert_prefix(data, self._prefix + stamp))
            sink.last = self
            sink.unfinished = None if data.endswith(ENDS) else self


def render(output: OutputConfig, place: WorkerEnv, hostname: str) -> str:
    text = output.log_line_prefix_template
    return Template("[${rank}] " if text is None else text).substitute(
        role_name=place.role_name,
        rank=place.rank,
        local_rank=place.local_rank,
        hostname=hostname,
    )


def encode(text: str) -> bytes:
    """Return the bytes of a text that came from a command line or a file, whatever they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair
        return text.encode("utf-8", "backslashreplace")


def paint(prefix: bytes, rank: int) -> bytes:
    colour = PALETTE[rank % len(PALETTE)]
    return b"\x1b[38;5;%dm%b\x1b[0m" % (colour, prefix) if prefix else b""


def is_coloured(output: OutputConfig, on_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Return whether prefixes are coloured on an output that is a terminal, or is not."""
    if output.color == "auto":
        plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
        return on_terminal and not plain
    return output.color == "always"


def stamp(seconds: float) -> bytes:
    """Return the time `seconds` since the epoch in the format that precedes a line."""
    milliseconds = int(seconds * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return b"%b.%03dZ " % (whole.encode(), milliseconds % 1000)
