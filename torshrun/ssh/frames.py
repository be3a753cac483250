"""What torshrun and a host that it started by ssh tell each other over ssh's stdin and stdout.

Frames (torsh_runtime/framing.py) have a kind of one byte. What the host writes begins with MARK:
whatever its shell has printed before is not for us.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from torsh_runtime import framing

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

_KIND_BYTES = 1


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return framing.frame(content, kind)


def message(kind: bytes, facts: Any) -> bytes:
    """A frame with JSON, which is ASCII: texts may hold what is no UTF-8 (surrogateescape)."""
    return frame(kind, json.dumps(facts).encode())


class Frames:
    """Cuts a stream of bytes into frames. Pure."""

    def __init__(self) -> None:
        self._frames = framing.Frames(kind_bytes=_KIND_BYTES)

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Kinds and contents of those that are complete. DamagedFrame for one that is too long."""
        self._frames.feed(data)
        while (taken := self._frames.take()) is not None:
            yield taken[:_KIND_BYTES], taken[_KIND_BYTES:]
