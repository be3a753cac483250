"""Calls as bytes: pickles (protocol 5, PEP 574) with the arrays beside them, and their seals.

A pickle is sealed with HMAC-SHA256 under a key of the connection and of the direction, together
with what it is, the call that it belongs to and its number on the connection; the numbers are
counted by the connection itself. So nothing is unpickled that the peer has not sent, or twice.
The contents of arrays are not sealed: they are not unpickled.
"""

from __future__ import annotations

import copyreg
import hmac
import io
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torsh_runtime.errors import CommError

SEAL_BYTES = 32
_HEAD = struct.Struct("<BQQQ")
_COPIED = 64 << 10
"""Bytes of a pickle up to which it is sealed in one call."""

Reduced = tuple[Any, ...]


class _Reducers(dict[type, Callable[[Any], Reduced]]):
    """Ours, and for all other types those of copyreg."""

    def __missing__(self, kind: type) -> Callable[[Any], Reduced]:
        return copyreg.dispatch_table[kind]  # type: ignore[return-value]


_reducers = _Reducers()
_known: set[str] = set()
_FRAMEWORKS = {"torch", "cupy"}


class _Pickler(pickle.Pickler):
    dispatch_table = _reducers


def pack(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Its pickle, and the buffers that belong to it. Raises what pickle raises."""
    if not _known.issuperset(_FRAMEWORKS & sys.modules.keys()):
        _learn()
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, 5, buffer_callback=buffers.append).dump(value)
    return file.getvalue(), buffers


def unpack(pickled: Any, buffers: Sequence[Any]) -> Any:
    """The counterpart, of a pickle whose seal was right."""
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301  (its seal was right)


class Sealer:
    """One direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, kind: int, call: int, number: int, pickled: Any, buffers: int) -> bytes:
        """Of a pickle that goes this way."""
        head = _HEAD.pack(kind, call, number, buffers)
        if len(pickled) <= _COPIED:
            return hmac.digest(self._key, head + bytes(pickled), "sha256")
        whole = hmac.new(self._key, head, "sha256")
        whole.update(pickled)
        return whole.digest()

    def check(
        self, seal: bytes, kind: int, call: int, number: int, pickled: Any, buffers: int
    ) -> None:
        """Raise CommError unless the peer has sent it there and then."""
        if not hmac.compare_digest(seal, self.seal(kind, call, number, pickled, buffers)):
            raise CommError(
                "a call was received that the peer has not sent there and then, and was thrown "
                "away unread: somebody has got at the connection"
            )


def _learn() -> None:
    """Take in the arrays of frameworks that the program has loaded."""
    if "torch" in sys.modules:
        from torsh_runtime.rpc.tensors import REDUCERS

        _reducers.update(REDUCERS)
        _known.add("torch")
    if "cupy" in sys.modules:
        import cupy

        _reducers[cupy.ndarray] = _reduce_cupy
        _known.add("cupy")


def _reduce_cupy(array: Any) -> Reduced:
    return _rebuild_cupy, (array.get(),)


def _rebuild_cupy(array: Any) -> Any:
    """On the receiver's current device."""
    import cupy

    return cupy.asarray(array)
