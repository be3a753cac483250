"""The two sides of a connection to a store, without any I/O: the handshake, then signed frames."""

from __future__ import annotations

import os
from collections.abc import Callable

from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.keys import derive

_CONFIRMED: tuple[wire.Role, wire.Role] = ("client", "server")


class Session:
    """One side's frames. What is received goes in by `feed` and comes out of `take`; what is sent
    goes through `pack`, in the order in which it is sent.
    """

    def __init__(self, role: wire.Role, secret: bytes) -> None:
        self._role = role
        self._secret = secret
        self._nonce = os.urandom(wire.NONCE_BYTES)
        self._decoder = wire.FrameDecoder(wire.MAX_HANDSHAKE_FRAME)
        self._signer: wire.Signer | None = None
        self.feed = self._decoder.feed
        self.take = self._decoder.take

    @property
    def limit(self) -> int:
        """The largest payload that is accepted, in bytes."""
        return self._decoder.limit

    def pack(self, frame: bytes) -> bytes:
        """The frame as it is to be sent."""
        return frame + self._signer.next_mac(frame) if self._signer else frame

    def _begin(self, server_nonce: bytes, client_nonce: bytes) -> None:
        """Both sides have proved that they know the secret."""
        self._decoder.limit = wire.MAX_FRAME
        if self._secret:
            client, server = (
                wire.Signer(derive(self._secret, "store session", role, server_nonce, client_nonce))
                for role in _CONFIRMED
            )
            own, other = (client, server) if self._role == "client" else (server, client)
            self._signer = own
            self._decoder.expect(other)


class ClientSession(Session):
    """The client's side."""

    def __init__(self, secret: bytes) -> None:
        super().__init__("client", secret)
        self._server_nonce = b""

    def answer(self, greeting: bytes, check_server: Callable[[], None] = lambda: None) -> bytes:
        """The frame to send when the server has greeted. `check_server` raises an error if it is
        not to be spoken with, ConnectionError if it has gone: the reason that it gave for that, if
        it did, counts more. StoreError as decode_greeting.
        """
        try:
            check_server()
        except ConnectionError:
            wire.decode_greeting(greeting)
            raise
        self._server_nonce = wire.decode_greeting(greeting)
        claim = wire.proof(self._secret, "client", self._server_nonce, self._nonce)
        return wire.encode([self._nonce, claim])

    def confirm(self, verdict: bytes) -> None:
        """Begin, if the server knows the secret and lets this client in. StoreError otherwise."""
        claim = wire.decode_verdict(verdict)
        if not wire.is_proof(claim, self._secret, "server", self._server_nonce, self._nonce):
            raise StoreError("what listens there does not know this job's secret")
        self._begin(self._server_nonce, self._nonce)


class ServerSession(Session):
    """The server's side."""

    def __init__(self, secret: bytes) -> None:
        super().__init__("server", secret)

    def greeting(self) -> bytes:
        """The frame to send first."""
        return wire.encode_greeting(self._nonce)

    def confirm(self, answer: bytes) -> bytes:
        """Begin, if the client knows the secret: the frame to send. StoreError otherwise."""
        nonce, claim = wire.decode_answer(answer)
        if not wire.is_proof(claim, self._secret, "client", self._nonce, nonce):
            raise StoreError("it does not know this job's secret")
        verdict = wire.encode([True, wire.proof(self._secret, "server", self._nonce, nonce)])
        self._begin(self._nonce, nonce)
        return verdict
