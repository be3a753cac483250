"""A client of a StoreServer that sends whatever bytes it is told to."""

from __future__ import annotations

import socket

from torsh_runtime.store import wire
from torsh_runtime.store.endpoint import UnixEndpoint, parse_endpoint
from torsh_runtime.store.session import ClientSession

GUARD = 60.0


class RawClient:
    """A connection; until `authenticate` it has sent nothing. Close it."""

    def __init__(self, endpoint: str, secret: bytes) -> None:
        self.sock = _connected(endpoint)
        self.session = ClientSession(secret)

    @classmethod
    def over(cls, sock: socket.socket, secret: bytes) -> RawClient:
        """The same over a connection that there is."""
        client = cls.__new__(cls)
        client.sock, client.session = sock, ClientSession(secret)
        return client

    def authenticate(self) -> None:
        """Prove that the secret is known. StoreError when the server refuses."""
        self.send(self.session.answer(self.receive()))
        self.session.confirm(self.receive())

    def receive(self) -> bytes:
        """One frame's payload; b"" when the connection ends instead."""
        while (payload := self.session.take()) is None:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionError:
                return b""
            if not data:
                return b""
            self.session.feed(data)
        return payload

    def send(self, frame: bytes) -> None:
        """The frame, with the MAC that belongs to it."""
        self.sendall(self.session.pack(frame))

    def sendall(self, data: bytes) -> None:
        """Just these bytes."""
        self.sock.sendall(data)

    def is_cut_off(self) -> bool:
        """Whether the server hangs up, at most with a word of why."""
        while payload := self.receive():
            assert wire.decode(payload)[:1] == [False]  # type: ignore[index]
        return True

    def close(self) -> None:
        """Hang up."""
        self.sock.close()


def _connected(endpoint: str) -> socket.socket:
    where = parse_endpoint(endpoint)
    if not isinstance(where, UnixEndpoint):
        return socket.create_connection((where.host, where.port), GUARD)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(GUARD)
    sock.connect(where.address)
    return sock
