"""Frames and messages: what goes in comes out, and no bytes do worse than StoreError."""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store import wire
from torsh_runtime.store.base import Compare, Delete, Entry, Event, Listing, Outcome, Put

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
BLOB = st.binary(max_size=200)
INT = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False)
ENTRY = st.builds(Entry, TEXT, BLOB, INT, INT)
WRITE = st.builds(Put, TEXT, BLOB, INT) | st.builds(Delete, TEXT)
ARGS = {
    "get": st.tuples(TEXT),
    "list": st.tuples(TEXT),
    "put": st.tuples(TEXT, BLOB, INT),
    "delete": st.tuples(TEXT),
    "transact": st.tuples(st.lists(st.builds(Compare, TEXT, INT)), st.lists(WRITE)),
    "add": st.tuples(TEXT, INT),
    "wait": st.tuples(st.lists(TEXT), FLOAT),
    "watch": st.tuples(TEXT, INT),
    "grant": st.tuples(FLOAT),
    "keep_alive": st.tuples(INT),
    "revoke": st.tuples(INT),
}
RESULTS = {
    "get": st.none() | ENTRY,
    "list": st.builds(Listing, st.lists(ENTRY).map(tuple), INT),
    "put": INT,
    "delete": st.booleans(),
    "transact": st.builds(Outcome, st.booleans(), INT),
    "add": INT,
    "wait": st.lists(ENTRY, unique_by=lambda e: e.key).map(lambda es: {e.key: e for e in es}),
    "grant": INT,
    "keep_alive": st.none(),
    "revoke": st.none(),
}
REQUEST = st.sampled_from(sorted(ARGS)).flatmap(
    lambda op: ARGS[op].map(lambda args: wire.Request(1, op, args))
)
RESULT = st.sampled_from(sorted(RESULTS)).flatmap(lambda op: st.tuples(st.just(op), RESULTS[op]))
JUNK = (
    st.none()
    | st.booleans()
    | INT
    | st.floats()
    | TEXT
    | BLOB
    | st.sampled_from(["get", "put", "transact", "wait", "delete", "timeout"])
)
MESSAGE = st.recursive(JUNK, lambda inner: st.lists(inner, max_size=5), max_leaves=20)


def payload(frame: bytes) -> bytes:
    decoder = wire.FrameDecoder(wire.MAX_FRAME)
    decoder.feed(frame)
    taken = decoder.take()
    assert taken is not None
    assert decoder.take() is None
    return taken


@given(REQUEST)
def test_requests_come_out_as_they_went_in(request: wire.Request) -> None:
    decoded = wire.decode_request(payload(wire.encode_request(request)))
    assert decoded._replace(args=()) == request._replace(args=())
    for there, here in zip(decoded.args, request.args, strict=True):
        assert there == (tuple(here) if isinstance(here, list) else here)


@given(RESULT)
def test_results_come_out_as_they_went_in(case: tuple[str, object]) -> None:
    op, result = case
    reply = wire.decode_reply(payload(wire.encode_result(wire.Request(5, op, ()), result)))
    assert (reply.id, reply.status) == (5, wire.RESULT)
    assert wire.decode_result(op, reply.body) == result


@given(st.builds(Event, st.sampled_from(["put", "delete"]), TEXT, BLOB, INT, INT))
def test_events_come_out_as_they_went_in(event: Event) -> None:
    reply = wire.decode_reply(payload(wire.encode_event(wire.Request(5, "watch", ()), event)))
    assert reply.status == wire.EVENT
    assert wire.decode_event(reply.body) == event


@pytest.mark.parametrize("kind", [StoreError, StoreTimeout])
def test_failures_keep_their_kind(kind: type[StoreError]) -> None:
    frame = wire.encode_failure(wire.Request(5, "get", ()), kind("because"))
    error = wire.decode_failure(wire.decode_reply(payload(frame)).body)
    assert type(error) is kind
    assert str(error) == "because"


@given(st.lists(BLOB, max_size=6), st.data())
def test_frames_survive_any_cutting(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(wire.encode, messages))
    decoder, found = wire.FrameDecoder(wire.MAX_FRAME), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        decoder.feed(stream[:size])
        stream = stream[size:]
        while (taken := decoder.take()) is not None:
            found.append(wire.decode(taken))
    assert found == messages


DECODERS = [
    wire.decode,
    wire.decode_request,
    wire.decode_reply,
    wire.decode_greeting,
    wire.decode_answer,
    wire.decode_verdict,
]


@given(st.binary(max_size=300))
def test_random_bytes_do_no_worse_than_store_error(data: bytes) -> None:
    for decoder in DECODERS:
        try:
            decoder(data)
        except StoreError:
            continue


@given(MESSAGE)
def test_random_messages_do_no_worse_than_store_error(message: object) -> None:
    for decoder in DECODERS:
        try:
            decoder(msgpack.packb(message))
        except StoreError:
            continue


@given(st.lists(MESSAGE, max_size=3), st.sampled_from(sorted(ARGS)))
def test_random_arguments_do_no_worse_than_store_error(args: list[object], op: str) -> None:
    try:
        wire.decode_request(msgpack.packb([1, op, args]))
    except StoreError:
        return


@given(MESSAGE)
def test_random_bodies_do_no_worse_than_store_error(body: object) -> None:
    for op in RESULTS:
        try:
            wire.decode_result(op, body)
        except StoreError:
            continue
    for decoder in (wire.decode_event, wire.decode_failure):
        try:
            decoder(body)
        except StoreError:
            continue


@given(st.binary(min_size=4, max_size=50))
def test_a_decoder_refuses_what_exceeds_its_limit(data: bytes) -> None:
    decoder = wire.FrameDecoder(16)
    decoder.feed(data)
    if int.from_bytes(data[:4], "big") > 16:
        with pytest.raises(StoreError, match="16"):
            decoder.take()
    else:
        decoder.take()


@pytest.mark.parametrize("message", [2**65, object(), {1, 2}, "\ud800"])
def test_what_cannot_be_packed_is_a_store_error(message: object) -> None:
    with pytest.raises(StoreError):
        wire.encode(message)


def test_deep_nesting_is_a_store_error() -> None:
    with pytest.raises(StoreError):
        wire.decode(b"\x91" * 5000 + b"\xc0")


def test_proofs_differ_by_role_secret_and_nonces() -> None:
    cases = [
        wire.proof(secret, role, server, client)
        for secret in (b"", b"s")
        for role in ("client", "server")
        for server, client in ((b"1" * 32, b"2" * 32), (b"2" * 32, b"1" * 32))
    ]
    assert len(set(cases)) == len(cases)
    assert wire.is_proof(cases[0], b"", "client", b"1" * 32, b"2" * 32)
    assert not wire.is_proof(b"", b"", "client", b"1" * 32, b"2" * 32)


@pytest.mark.parametrize("decode", [wire.decode_greeting, wire.decode_verdict])
def test_a_strangers_refusal_commands_no_terminal(decode: Callable[[bytes], bytes]) -> None:
    frame = wire.encode_refusal("\x1b]0;title\x07\nerror: none\x9b2J")
    with pytest.raises(StoreError) as caught:
        decode(payload(frame))
    assert str(caught.value).isprintable()


def test_a_greeting_of_another_version_is_refused() -> None:
    frame = wire.encode([wire.MAGIC, wire.VERSION + 1, bytes(32)])
    with pytest.raises(StoreError, match="same torshrun"):
        wire.decode_greeting(payload(frame))


@pytest.mark.parametrize("junk", [b"\x01" + b"A" * 4000, b"\xa1\xff" * 2000, b"\x91" * 4000])
def test_what_is_said_of_junk_is_short(junk: bytes) -> None:
    """It is logged where strangers send it."""
    with pytest.raises(StoreError, match="no message of a store") as raised:
        wire.decode(junk)
    assert len(str(raised.value)) < 100
