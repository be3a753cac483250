"""Frames, which delimit messages in a stream of bytes, without any I/O.

A frame is the length of its payload, in 4 bytes, and the payload. Some streams have a byte for the
kind of message before the length, which does not include it, and some have a signature after the
payload. Lengths are big-endian, except in streams that C reads, which have the machine's order.
"""

from __future__ import annotations

import sys
from typing import Final, Literal

Order = Literal["big", "little"]

MACHINE_ORDER: Final[Order] = sys.byteorder
MOST_BYTES = 16 << 20
"""Largest payload of a frame, unless a protocol says otherwise."""
_LENGTH_BYTES = 4


class DamagedFrame(ValueError):
    """Reports that received bytes are no frame. Nothing that follows them can be decoded either."""


def frame(payload: bytes, kind: bytes = b"", order: Order = "big") -> bytes:
    """Return the payload as a frame. Raises OverflowError for 4 GiB or more."""
    return kind + len(payload).to_bytes(_LENGTH_BYTES, order) + payload


class Frames:
    """Splits a stream of bytes into frames; holds at most one of them and the bytes last fed."""

    def __init__(self, limit: int = MOST_BYTES, kind_bytes: int = 0, order: Order = "big") -> None:
        self.limit = limit
        """Largest payload that is accepted, in bytes."""
        self._kind_bytes = kind_bytes
        self._order: Order = order
        self._signature_bytes = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._buffer += data

    def take(self) -> bytes | None:
        """Return the kind and the payload of the next frame, or None until more bytes are fed.

        Raises DamagedFrame if its length is too large, as soon as that is received.
        """
        begin = self._kind_bytes + _LENGTH_BYTES
        if len(self._buffer) < begin:
            return None
        size = int.from_bytes(self._buffer[self._kind_bytes : begin], self._order)
        if size > self.limit:
            raise DamagedFrame(
                f"a frame of {size} bytes is announced and at most {self.limit} are allowed"
            )
        end = begin + size
        whole = end + self._signature_bytes
        if len(self._buffer) < whole:
            return None
        with memoryview(self._buffer) as view:
            if self._signature_bytes:
                self._check(view[:end], view[end:whole])
            payload = bytes(view[begin:end])
        kind = bytes(self._buffer[: self._kind_bytes])
        del self._buffer[:whole]
        return kind + payload if kind else payload

    def _check(self, frame: memoryview, signature: memoryview) -> None:
        """Raise an error unless the signature is the frame's, and release both views."""
