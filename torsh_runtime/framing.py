"""Frames: how messages follow each other in a stream of bytes. Pure.

A frame is the length of its payload, in 4 bytes, and the payload. One stream has a byte for the
kind of message before the length, which does not count it; another has a signature behind the
payload. Lengths are big-endian, but for streams that C reads, which have the machine's order.
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
    """What has come is no frame, so that nothing which follows can be understood either."""


def frame(payload: bytes, kind: bytes = b"", order: Order = "big") -> bytes:
    """The payload as a frame. OverflowError from 4 GiB on."""
    return kind + len(payload).to_bytes(_LENGTH_BYTES, order) + payload


class Frames:
    """Cuts a stream of bytes into frames, and holds no more than one of them and what was fed."""

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
        """The kind and the payload of the next frame, or None until more is fed. DamagedFrame as
        soon as its length has come, if that is too large.
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
        """Raise an error unless the signature is the frame's, and let go of both."""
