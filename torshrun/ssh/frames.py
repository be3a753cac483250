"""Encodes the messages between torshrun and a host that it started, over ssh's stdin and stdout.

Frames (torsh_runtime/framing.py) have a kind of one byte. The output of the host begins with MARK:
whatever its shell has printed before is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from torsh_runtime import framing

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

_KIND_BYTES = 1


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return framing.frame(content, kind)


def message(kind: bytes, facts: Any) -> bytes:
    """Return a frame with JSON.

    JSON is ASCII: texts may contain bytes that are not UTF-8 (surrogateescape).
    """
    return frame(kind, json.dumps(facts).encode())


class Frames:
    """Splits a stream of bytes into frames. Pure."""

    def __init__(self) -> None:
        self._frames = framing.Frames(kind_bytes=_KIND_BYTES)

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the kind and content of each complete frame.

        Raises DamagedFrame for a frame that is too long.
        """
        self._frames.feed(data)
        while (taken := self._frames.take()) is not None:
            yield taken[:_KIND_BYTES], taken[_KIND_BYTES:]
