"""Whose process is at the other end, as two different sources tell it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from torsh_runtime.connections import peer


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's end and the server's, which has been accepted."""
    address = request.param
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener, socket.socket(family) as client:
        listener.bind((address, 0))
        listener.listen()
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            yield client, server


@pytest.mark.parametrize("netlink", [True, False])
def test_tcp_within_the_host(
    pair: tuple[socket.socket, socket.socket], netlink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without netlink, as where it is refused, the table in /proc tells the same."""
    if not netlink:
        monkeypatch.setattr(peer, "_SOCK_DIAG", 9999)
    for end in pair:
        assert peer.uid_of_peer(end) == os.geteuid()
        assert peer.foreign_uid(end, b"") is None
        assert peer.is_private(end)


@pytest.mark.parametrize("netlink", [True, False])
def test_an_end_that_nobody_holds_is_not_taken_for_roots(
    pair: tuple[socket.socket, socket.socket], netlink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lists what is left of a closed connection with uid 0."""
    if not netlink:
        monkeypatch.setattr(peer, "_SOCK_DIAG", 9999)
    client, server = pair
    client.close()
    assert peer.uid_of_peer(server) is None
    with pytest.raises(ConnectionError):
        peer.foreign_uid(server, b"")
    assert peer.foreign_uid(server, b"secret") is None


def test_a_connection_that_was_not_accepted_has_no_owner() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        pytest.raises(ConnectionError),
    ):
        peer.foreign_uid(client, b"")


def test_unix_sockets() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer.uid_of_peer(ours) == os.geteuid()
        assert peer.pid_of_peer(ours) == os.getpid()
        assert peer.foreign_uid(ours, b"secret") is None
        assert peer.is_private(ours)


def test_the_peers_uid_counts_and_root_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer.is_same_user(os.geteuid())
    assert peer.is_same_user(0)
    assert not peer.is_same_user(os.geteuid() + 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        assert peer.foreign_uid(ours, b"secret") == (os.getuid() or None)


def test_users_have_names_for_people() -> None:
    assert peer.user(0) == "user root (uid 0)"
    assert peer.user(3_999_999_999) == "uid 3999999999"
