"""The two sides of a connection to a store, without any I/O: the handshake, then signed frames."""

from __future__ import annotations

import os
from collections.abc import Callable

from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.keys import derive

_CONFIRMED: tuple[wire.Role, wire.Role] = ("client", "server")


class Session:
    """Processes the frames of one side of a connection.

    Received bytes are passed to `feed`, and `take` returns the payloads of complete frames. Frames
    are passed through `pack`, in the order in which they are sent.
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
        """Return the size of the largest payload that is accepted, in bytes."""
        return self._decoder.limit

    def pack(self, frame: bytes) -> bytes:
        """Return the frame as it is to be sent: with its MAC, if there is a secret."""
        return frame + self._signer.next_mac(frame) if self._signer else frame

    def _begin(self, server_nonce: bytes, client_nonce: bytes) -> None:
        """Begin to sign and check frames, as both sides have proved that they know the secret."""
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
    """Carries out the handshake as the client."""

    def __init__(self, secret: bytes) -> None:
        super().__init__("client", secret)
        self._server_nonce = b""

    def answer(self, greeting: bytes, check_server: Callable[[], None] = lambda: None) -> bytes:
        """Return the frame that answers the server's greeting.

        `check_server` raises an error if this side must not communicate with the server, and
        ConnectionError if the server has closed the connection. If the greeting says why it did
        so, that StoreError is raised instead. Raises StoreError as decode_greeting does.
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
        """Begin if the server knows the secret and accepts this client.

        Raises StoreError otherwise.
        """
        claim = wire.decode_verdict(verdict)
        if not wire.is_proof(claim, self._secret, "server", self._server_nonce, self._nonce):
            raise StoreError("what listens there does not know this job's secret")
        self._begin(self._server_nonce, self._nonce)


class ServerSession(Session):
    """Carries out the handshake as the server."""

    def __init__(self, secret: bytes) -> None:
        super().__init__("server", secret)

    def greeting(self) -> bytes:
        """Return the frame to send first."""
        return wire.encode_greeting(self._nonce)

    def confirm(self, answer: bytes) -> bytes:
        """Begin if the client knows the secret, and return the frame to send.

        Raises StoreError otherwise.
        """
        nonce, claim = wire.decode_answer(answer)
        if not wire.is_proof(claim, self._secret, "client", self._nonce, nonce):
            raise StoreError("it does not know this job's secret")
        verdict = wire.encode([True, wire.proof(self._secret, "server", self._nonce, nonce)])
        self._begin(self._nonce, nonce)
        return verdict
