"""Encodes the messages between torshrun and a host that it started, over ssh's stdin and stdout.

A frame is its kind (one byte), the length of its content (4 bytes, big-endian), and the content.
The output of the host begins with MARK: whatever its shell has printed before is ignored.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

MARK: Final = b"\0torshrun over ssh, 1\n"

BEAT: Final = b"B"
"""A sign of life without content, in both directions."""
MEET: Final = b"M"
"""To the host, JSON: the addresses of the other hosts that are to rendezvous there."""
JOB: Final = b"J"
"""To the host, JSON: everything that it needs to run its agent."""
SIGNAL: Final = b"S"
"""To the host: the number of a signal, one byte."""
HELLO: Final = b"H"
"""The JSON that the host begins with: its version of torshrun and its address."""
ENDPOINT: Final = b"E"
"""The host's answer to MEET, JSON: the address and the port."""
STDOUT: Final = b"O"
STDERR: Final = b"R"
EXIT: Final = b"X"
"""The host's last frame, JSON: the agent's exit code, and whether the agent had begun."""

LARGEST = 16 << 20
"""The most bytes in a frame. A command line and an environment are smaller."""
_HEAD = struct.Struct(">cI")


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(content)) + content


def message(kind: bytes, facts: Any) -> bytes:
    """Return a frame with JSON.

    JSON is ASCII: texts may contain bytes that are not UTF-8 (surrogateescape).
    """
    return frame(kind, json.dumps(facts).encode())


class Frames:
    """Splits a stream of bytes into frames. Pure."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the kind and content of each complete frame.

        Raises ValueError for a frame that is too long.
        """
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
