"""The store's wire protocol, without any I/O: frames, the handshake and the messages.

Frames (framing.py) hold msgpack. Handshake frames:

    server  [magic, version, server nonce]
    client  [client nonce, proof("client")]
    server  [true, proof("server")] or [false, reason], and then it hangs up

A proof is HMAC-SHA256 over the role and both nonces with the secret, so each side shows that it
knows the secret without telling it, and neither's proof can be played back. To each frame that
follows a MAC of 16 bytes is added: HMAC-SHA256 over the frame's number and the whole frame, under a
key that is made of the secret and both nonces, one for each direction (session.py). Nothing is
encrypted. With an empty secret there are no MACs and anybody passes. A server that does not speak
with a client at all says [false, reason] instead of its greeting.

Then the client sends [id, operation, arguments] as often as it likes, and the server answers each
[id, status, body], in any order: RESULT ends a request with its result, FAILURE with
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
"""Largest frame, in bytes, before that."""
MAX_ITEMS = 1 << 20
"""Most elements of one msgpack array."""

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
    """When the request was about to be sent, by this side's time.monotonic(); 0.0 is not noted."""
    came: float = 0.0
    """When the reply was there, before anything waited for it."""


class Signer:
    """Makes the MACs of the frames of one direction, in their order."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def next_mac(self, frame: bytes | memoryview) -> bytes:
        """That of the next frame, which is given with its length before it."""
        mac = self._keyed.copy()
        mac.update(self._count.to_bytes(8, "big"))
        mac.update(frame)
        self._count += 1
        return mac.digest()[:MAC_BYTES]


class FrameDecoder(Frames):
    """Cuts a stream of bytes into frames. Once it has a signer, each must have the MAC that this
    makes. StoreError for any other.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._signer: Signer | None = None

    def expect(self, signer: Signer) -> None:
        """Take frames with a MAC only from now on."""
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
    """One frame. StoreError when the message cannot be sent or exceeds the limit."""
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
    """The message of a frame's payload. StoreError whatever is wrong with it."""
    try:
        items = min(MAX_ITEMS, len(payload))
        return msgpack.unpackb(payload, max_array_len=items, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        kind = type(error).__name__  # what it says may be as long as what came
        raise StoreError(f"the bytes received are no message of a store ({kind})") from None


# --- handshake ---


def proof(secret: bytes, role: Role, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What shows that the role knows the secret."""
    text = f"{MAGIC} {VERSION} {role}\0".encode() + server_nonce + client_nonce
    return hmac.digest(secret, text, "sha256")


def is_proof(claim: bytes, secret: bytes, role: Role, server: bytes, client: bytes) -> bool:
    """Whether the claim is the role's proof for these nonces, in constant time."""
    return hmac.compare_digest(claim, proof(secret, role, server, client))


def encode_greeting(server_nonce: bytes) -> bytes:
    return encode([MAGIC, VERSION, server_nonce])


def encode_refusal(reason: str) -> bytes:
    """In place of the server's greeting or verdict."""
    return encode([False, reason])


def decode_greeting(payload: bytes) -> bytes:
    """The server's nonce. StoreError when this is no store, or one of another version, or it
    speaks only to tell why it does not.
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
    """The client's nonce and proof."""
    nonce, claim = _fields(decode(payload), bytes, bytes)
    if len(nonce) != NONCE_BYTES:
        raise StoreError("the client's nonce has the wrong length")
    return nonce, claim


def decode_verdict(payload: bytes) -> bytes:
    """The server's proof. StoreError with the reason when it refused."""
    message = decode(payload)
    _check_not_refused(message)
    return bytes(_fields(message, bool, bytes)[1])


def _check_not_refused(message: object) -> None:
    if isinstance(message, list) and message[:1] == [False]:
        reason: str = _fields(message, bool, str)[1]
        shown = reason if reason.isprintable() else ascii(reason)  # whoever listens there wrote it
        raise StoreError(f"it refused this process: {shown}")


# --- requests ---


def encode_request(request: Request) -> bytes:
    """A request as a frame. StoreError when an argument has the wrong type."""
    args: Sequence[object] = _fields([*request.args], *_ARGUMENTS[request.op])
    if request.op == "transact":
        compares, writes = request.args
        args = (compares, [_pack_write(write) for write in writes])
    return encode([request.id, request.op, args])


def decode_request(payload: bytes) -> Request:
    """A request whose arguments have the port's types. StoreError when it is malformed."""
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
    """The error that a FAILURE carries."""
    kind, message = _fields(body, str, str)
    return StoreTimeout(message) if kind == "timeout" else StoreError(message)


def decode_event(body: object) -> Event:
    kind, key, value, revision, lease = _fields(body, str, str, bytes, int, int)
    if kind not in ("put", "delete"):
        raise StoreError(f"the store sent an event of unknown kind {kind[:40]!r}")
    return Event(kind, key, value, revision, lease)


def decode_result(op: str, body: Any) -> Any:
    """What the Store port's method returns; of a watch, an event. StoreError when the body does not
    fit it.
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
    """The list itself, if its elements have exactly these types (a bool is no int)."""
    if not isinstance(values, list) or len(values) != len(kinds):
        raise StoreError("a message is malformed: it has the wrong number of fields")
    for value, kind in zip(values, kinds, strict=True):
        if type(value) is not kind:
            found = type(value).__name__
            raise StoreError(f"a message is malformed: {found} where {kind.__name__} belongs")
    return values
