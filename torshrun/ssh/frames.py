"""What torshrun and a host that it started by ssh tell each other over ssh's stdin and stdout.

A frame is its kind (one byte), the length of its content (4 bytes, big-endian), and that. What the
host writes begins with MARK: whatever its shell has printed before is not for us.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

MARK: Final = b"\0torshrun over ssh, 1\n"

BEAT: Final = b"B"
"""Either way: nothing but a sign of life."""
MEET: Final = b"M"
"""To the host, JSON: where the other hosts are, of whom they are to meet here."""
JOB: Final = b"J"
"""To the host, JSON: all that it needs to know to run its agent."""
SIGNAL: Final = b"S"
"""To the host: the number of a signal, one byte."""
HELLO: Final = b"H"
"""From the host, JSON: its version of torshrun and its address."""
ENDPOINT: Final = b"E"
"""From the host, JSON: the answer to MEET, the address and the port."""
STDOUT: Final = b"O"
STDERR: Final = b"R"
EXIT: Final = b"X"
"""From the host, JSON: the agent's exit code, and whether the agent had begun. The last frame."""

LARGEST = 16 << 20
"""Bytes of a frame's content: a command line and an environment have less."""
_HEAD = struct.Struct(">cI")


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(content)) + content


def message(kind: bytes, facts: Any) -> bytes:
    """A frame with JSON, which is ASCII: texts may hold what is no UTF-8 (surrogateescape)."""
    return frame(kind, json.dumps(facts).encode())


class Frames:
    """The frames of a flow of bytes. Pure."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Kinds and contents of those that are complete. ValueError for one that is too long."""
        self._data += data
        while len(self._data) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._data)
            if length > LARGEST:
                raise ValueError(f"a frame of {length} bytes")
            end = _HEAD.size + length
            if len(self._data) < end:
                return
            content = bytes(self._data[_HEAD.size : end])
            del self._data[:end]
            yield kind, content
