"""The store's wire protocol, without any I/O: frames, the handshake and the messages.

Frames (framing.py) hold msgpack. Handshake frames:

    server  [magic, version, server nonce]
    client  [client nonce, proof("client")]
    server  [true, proof("server")] or [false, reason], and then it hangs up

A proof is HMAC-SHA256 over the role and both nonces with the secret, so each side shows that it
knows the secret without revealing it, and no proof can be replayed. A MAC of 16 bytes is added to
each frame that follows: HMAC-SHA256 over the frame's number and the whole frame, under a key that
is derived from the secret and both nonces, one for each direction (session.py). Nothing is
encrypted. With an empty secret there are no MACs and every client is accepted. A server that
refuses a client from the start sends [false, reason] instead of its greeting.

Then the client sends any number of requests [id, operation, arguments], and the server answers each
with [id, status, body], in any order: RESULT ends a request with its result, FAILURE with
[kind, message]; a watch gets one EVENT for each change and ends with FAILURE. A client ends its
watches and waits by hanging up.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgpack

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.framing import DamagedFrame, Frames, frame
from torsh_runtime.store.base import Compare, Delete, Entry, Event, Listing, Outcome, Put, Write

MAGIC = "torsh-store"
VERSION = 3
NONCE_BYTES = 32
MAC_BYTES = 16
MAX_FRAME = 64 << 20
"""Largest frame, in bytes, once both sides have proved that they know the secret."""
MAX_HANDSHAKE_FRAME = 4 << 10
"""Largest frame of the handshake, in bytes."""
MAX_ITEMS = 1 << 20
"""Largest number of elements in a msgpack array."""

RESULT, FAILURE, EVENT = 0, 1, 2

Role = Literal["client", "server"]

_ARGUMENTS: Mapping[str, tuple[type, ...]] = {
    "get": (str,),
    "list": (str,),
    "put": (str, bytes, int),
    "delete": (str,),
    "transact": (list, list),
    "add": (str, int),
    "wait": (list, float),
    "watch": (str, int),
    "grant": (float,),
    "keep_alive": (int,),
    "revoke": (int,),
}


class Request(NamedTuple):
    id: int
    op: str
    """A method of the Store port."""
    args: tuple[Any, ...]


class Reply(NamedTuple):
    id: int
    status: int
    """RESULT, FAILURE or EVENT."""
    body: Any
    sent: float = 0.0
    """Moment of this side's time.monotonic() before the request was sent; 0.0 if not recorded."""
    came: float = 0.0
    """Moment of this side's time.monotonic() when the reply was received; 0.0 if not recorded."""


class Signer:
    """Computes the MACs of the frames of one direction, in their order."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def next_mac(self, frame: bytes | memoryview) -> bytes:
        """Return the MAC of the next frame; `frame` includes the length before the payload."""
        mac = self._keyed.copy()
        mac.update(self._count.to_bytes(8, "big"))
        mac.update(frame)
        self._count += 1
        return mac.digest()[:MAC_BYTES]


class FrameDecoder(Frames):
    """Splits a stream of bytes into frames, and raises StoreError for damaged ones.

    Once it has a signer, each frame must have the MAC that the signer computes.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._signer: Signer | None = None

    def expect(self, signer: Signer) -> None:
        """Accept only frames with the MACs of `signer` from now on."""
        self._signer, self._signature_bytes = signer, MAC_BYTES

    def take(self) -> bytes | None:
        try:
            return super().take()
        except DamagedFrame as error:
            raise StoreError(
                f"{error}; the other side does not speak the store's protocol, or sends too large "
                f"a value"
            ) from None

    def _check(self, frame: memoryview, signature: memoryview) -> None:
        assert self._signer is not None
        with frame, signature:
            if not hmac.compare_digest(self._signer.next_mac(frame), signature):
                raise StoreError(
                    "a frame has the wrong MAC: it was changed, left out or put in on its way, by "
                    "somebody who stands between the two sides"
                )


def encode(message: object, limit: int = MAX_FRAME) -> bytes:
    """Return the message as a frame.

    Raises StoreError when msgpack cannot encode it, or it exceeds `limit` bytes.
    """
    try:
        payload = msgpack.packb(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"this cannot be sent to a store: {error}") from None
    if len(payload) > limit:
        raise StoreError(
            f"a message of {len(payload)} bytes exceeds the store's limit of {limit}. "
            f"Split the value, or list a narrower prefix."
        )
    return frame(payload)


def decode(payload: bytes) -> object:
    """Return the message of a frame's payload. Raises StoreError for any malformed payload."""
    try:
        items = min(MAX_ITEMS, len(payload))
        return msgpack.unpackb(payload, max_array_len=items, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        kind = type(error).__name__  # its text may be as long as the payload
        raise StoreError(f"the bytes received are no message of a store ({kind})") from None


# --- handshake ---


def proof(secret: bytes, role: Role, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return the proof (32 bytes) that the role knows the secret."""
    text = f"{MAGIC} {VERSION} {role}\0".encode() + server_nonce + client_nonce
    return hmac.digest(secret, text, "sha256")


def is_proof(claim: bytes, secret: bytes, role: Role, server: bytes, client: bytes) -> bool:
    """Return whether the claim is the role's proof for these nonces; compare in constant time."""
    return hmac.compare_digest(claim, proof(secret, role, server, client))


def encode_greeting(server_nonce: bytes) -> bytes:
    return encode([MAGIC, VERSION, server_nonce])


def encode_refusal(reason: str) -> bytes:
    """Return the frame that a server sends instead of its greeting or verdict."""
    return encode([False, reason])


def decode_greeting(payload: bytes) -> bytes:
    """Return the server's nonce.

    Raises StoreError when the sender is no store, is one of a different version, or has refused
    this client; the error then contains its reason.
    """
    message = decode(payload)
    _check_not_refused(message)
    if not isinstance(message, list) or message[:1] != [MAGIC]:
        raise StoreError("what listens there is no torsh store")
    _, version, nonce = _fields(message, str, int, bytes)
    if version != VERSION:
        raise StoreError(
            f"the store speaks version {version} of the protocol and this side {VERSION}: "
            f"install the same torshrun everywhere"
        )
    if len(nonce) != NONCE_BYTES:
        raise StoreError("the store's nonce has the wrong length")
    return bytes(nonce)


def decode_answer(payload: bytes) -> tuple[bytes, bytes]:
    """Return the client's nonce and proof. Raises StoreError when the answer is malformed."""
    nonce, claim = _fields(decode(payload), bytes, bytes)
    if len(nonce) != NONCE_BYTES:
        raise StoreError("the client's nonce has the wrong length")
    return nonce, claim


def decode_verdict(payload: bytes) -> bytes:
    """Return the server's proof. Raises StoreError, with the reason, when it has refused."""
    message = decode(payload)
    _check_not_refused(message)
    return bytes(_fields(message, bool, bytes)[1])


def _check_not_refused(message: object) -> None:
    if isinstance(message, list) and message[:1] == [False]:
        reason: str = _fields(message, bool, str)[1]
        shown = reason if reason.isprintable() else ascii(reason)  # any process may listen there
        raise StoreError(f"it refused this process: {shown}")


# --- requests ---


def encode_request(request: Request) -> bytes:
    """Return a request as a frame. Raises StoreError when an argument has the wrong type."""
    args: Sequence[object] = _fields([*request.args], *_ARGUMENTS[request.op])
    if request.op == "transact":
        compares, writes = request.args
        args = (compares, [_pack_write(write) for write in writes])
    return encode([request.id, request.op, args])


def decode_request(payload: bytes) -> Request:
    """Return the request, its arguments converted to the port's types.

    Raises StoreError when it is malformed.
    """
    request_id, op, args = _fields(decode(payload), int, str, list)
    if op not in _ARGUMENTS:
        raise StoreError(f"the store has no operation {op[:40]!r}")
    values = _fields(args, *_ARGUMENTS[op])
    if op == "transact":
        compares = tuple(Compare(*_fields(item, str, int)) for item in values[0])
        values = (compares, tuple(_unpack_write(item) for item in values[1]))
    elif op == "wait":
        values = (tuple(_fields(values[0], *[str] * len(values[0]))), values[1])
    return Request(request_id, op, tuple(values))


def _pack_write(write: Write) -> tuple[object, ...]:
    if isinstance(write, Put):
        _fields([*write], str, bytes, int)
        return ("put", *write)
    return ("delete", *write)


def _unpack_write(item: object) -> Write:
    if isinstance(item, list) and item[:1] == ["put"]:
        return Put(*_fields(item, str, str, bytes, int)[1:])
    tag, key = _fields(item, str, str)
    if tag != "delete":
        raise StoreError(f"a transaction cannot {tag[:40]!r}")
    return Delete(key)


# --- replies ---


def encode_result(request: Request, result: Any) -> bytes:
    body = list(result.values()) if request.op == "wait" else result
    return encode([request.id, RESULT, body])


def encode_event(request: Request, event: Event) -> bytes:
    return encode([request.id, EVENT, event])


def encode_failure(request: Request, error: StoreError) -> bytes:
    kind = "timeout" if isinstance(error, StoreTimeout) else "store"
    return encode([request.id, FAILURE, [kind, str(error)]])


def decode_reply(payload: bytes) -> Reply:
    message = decode(payload)
    if not isinstance(message, list) or len(message) != 3:
        raise StoreError("the reply received is malformed")
    request_id, status = _fields(message[:2], int, int)
    return Reply(request_id, status, message[2])


def decode_failure(body: object) -> StoreError:
    """Return the error that a FAILURE contains."""
    kind, message = _fields(body, str, str)
    return StoreTimeout(message) if kind == "timeout" else StoreError(message)


def decode_event(body: object) -> Event:
    kind, key, value, revision, lease = _fields(body, str, str, bytes, int, int)
    if kind not in ("put", "delete"):
        raise StoreError(f"the store sent an event of unknown kind {kind[:40]!r}")
    return Event(kind, key, value, revision, lease)


def decode_result(op: str, body: Any) -> Any:
    """Return the result of the Store port's method `op`; for a watch, an event.

    Raises StoreError when the body does not have the method's types.
    """
    match op:
        case "watch":
            return decode_event(body)
        case "get":
            return None if body is None else decode_entry(body)
        case "list":
            items, revision = _fields(body, list, int)
            return Listing(tuple(map(decode_entry, items)), revision)
        case "wait":
            entries = map(decode_entry, _fields([body], list)[0])
            return {entry.key: entry for entry in entries}
        case "transact":
            return Outcome(*_fields(body, bool, int))
        case "delete":
            return _fields([body], bool)[0]
        case "put" | "add" | "grant":
            return _fields([body], int)[0]
    _fields([body], type(None))
    return None


def decode_entry(body: object) -> Entry:
    return Entry(*_fields(body, str, bytes, int, int))


def _fields(values: object, *kinds: type) -> Sequence[Any]:
    """Return the list if its elements have exactly these types (a bool is no int).

    Raises StoreError otherwise.
    """
    if not isinstance(values, list) or len(values) != len(kinds):
        raise StoreError("a message is malformed: it has the wrong number of fields")
    for value, kind in zip(values, kinds, strict=True):
        if type(value) is not kind:
            found = type(value).__name__
            raise StoreError(f"a message is malformed: {found} where {kind.__name__} belongs")
    return values
