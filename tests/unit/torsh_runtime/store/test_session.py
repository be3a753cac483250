"""Both sides of a connection, without the connection: who gets in, and what is taken from whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.session import ClientSession, ServerSession, Session

FRAMES = [wire.encode([number, "x" * number]) for number in range(4)]


def take(session: Session, data: bytes) -> bytes:
    session.feed(data)
    payload = session.take()
    assert payload is not None
    return payload


def met(secret: bytes) -> tuple[ClientSession, ServerSession]:
    client, server = ClientSession(secret), ServerSession(secret)
    answer = client.answer(take(client, server.greeting()))
    client.confirm(take(client, server.confirm(take(server, answer))))
    return client, server


@pytest.mark.parametrize("secret", [b"", b"secret"])
def test_frames_come_out_as_they_went_in(secret: bytes) -> None:
    client, server = met(secret)
    for sender, receiver in ((client, server), (server, client)):
        packed = [sender.pack(frame) for frame in FRAMES]
        receiver.feed(b"".join(packed))
        assert [receiver.take() for _ in FRAMES] == [frame[4:] for frame in FRAMES]
        assert receiver.take() is None
        assert all((len(p) > len(f)) is bool(secret) for p, f in zip(packed, FRAMES, strict=True))


TAMPERED: list[Callable[[list[bytes]], bytes]] = [
    lambda packed: packed[0][:-1] + bytes([packed[0][-1] ^ 1]),  # the MAC
    lambda packed: packed[1][:-20] + b"y" + packed[1][-19:],  # the frame
    lambda packed: packed[1],  # one is left out
    lambda packed: FRAMES[0] + bytes(wire.MAC_BYTES),  # put in
    lambda packed: packed[0][: len(FRAMES[0])] + packed[1],  # without its MAC
    lambda packed: FRAMES[0] + packed[1][-wire.MAC_BYTES :],
]


@pytest.mark.parametrize("tamper", TAMPERED)
def test_what_was_tampered_with_is_not_taken(tamper: Callable[[list[bytes]], bytes]) -> None:
    client, server = met(b"secret")
    server.feed(tamper([client.pack(frame) for frame in FRAMES]))
    with pytest.raises(StoreError, match="wrong MAC"):
        server.take()


def test_a_frame_is_not_taken_twice() -> None:
    client, server = met(b"secret")
    packed = client.pack(FRAMES[0])
    take(server, packed)
    with pytest.raises(StoreError, match="wrong MAC"):
        take(server, packed)


def test_a_frame_is_not_taken_back_by_its_sender() -> None:
    client, _ = met(b"secret")
    with pytest.raises(StoreError, match="wrong MAC"):
        take(client, client.pack(FRAMES[0]))


def test_a_frame_of_another_connection_is_not_taken() -> None:
    (client, _), (_, server) = met(b"secret"), met(b"secret")
    with pytest.raises(StoreError, match="wrong MAC"):
        take(server, client.pack(FRAMES[0]))


@given(st.binary(max_size=80))
def test_random_bytes_never_pass_for_a_frame(data: bytes) -> None:
    _, server = met(b"secret")
    server.feed(data)
    try:
        assert server.take() is None
    except StoreError:
        return


@pytest.mark.parametrize(("ones", "others"), [(b"a", b"b"), (b"", b"b"), (b"a", b"")])
def test_another_secret_is_refused(ones: bytes, others: bytes) -> None:
    client, server = ClientSession(ones), ServerSession(others)
    answer = client.answer(take(client, server.greeting()))
    with pytest.raises(StoreError, match="secret"):
        server.confirm(take(server, answer))
    assert server.limit == wire.MAX_HANDSHAKE_FRAME


def test_a_relay_between_two_services_is_found_out() -> None:
    """A client's proof for one service, relayed to another one that has a key of its own."""
    client, server = ClientSession(b"key of the hub"), ServerSession(b"key of the rendezvous")
    answer = client.answer(take(client, server.greeting()))
    with pytest.raises(StoreError, match="secret"):
        server.confirm(take(server, answer))


def test_a_relay_learns_no_session_key() -> None:
    """Who stands between two sides that prove to each other can pass frames on, and make none."""
    client, server = met(b"secret")
    take(server, client.pack(FRAMES[1]))
    with pytest.raises(StoreError, match="wrong MAC"):
        take(server, wire.Signer(b"").next_mac(FRAMES[2]).join([FRAMES[2], b""]))


def test_a_refusal_in_place_of_a_greeting_is_told() -> None:
    client = ClientSession(b"")
    with pytest.raises(StoreError, match="refused this process: because"):
        client.answer(take(client, wire.encode_refusal("because")))


def test_the_servers_reason_counts_more_than_that_it_has_gone_since() -> None:
    def gone() -> None:
        raise ConnectionAbortedError("nobody is there")

    client = ClientSession(b"secret")
    with pytest.raises(StoreError, match="because"):
        client.answer(take(client, wire.encode_refusal("because")), gone)
    client = ClientSession(b"secret")
    with pytest.raises(ConnectionAbortedError, match="nobody is there"):
        client.answer(take(client, wire.encode_greeting(bytes(wire.NONCE_BYTES))), gone)
