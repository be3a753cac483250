"""Serves any Store to other processes over a Unix or TCP socket."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torsh_runtime.connections.acceptor import Acceptor
from torsh_runtime.connections.multiplexer import (
    MAX_STRANGERS,
    ConnectionMultiplexer,
    Outcome,
    ProtocolCoroutine,
    Refused,
    check_user,
    receive_some,
    send,
)
from torsh_runtime.connections.peer import is_private_address
from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.base import Store
from torsh_runtime.store.connection import Connection
from torsh_runtime.store.endpoint import UnixEndpoint
from torsh_runtime.store.listener import listen_on
from torsh_runtime.store.refusals import Refusals
from torsh_runtime.store.session import ServerSession
from torsh_runtime.store.sockets import tune

HANDSHAKE_SECONDS = 5.0
SEND_SECONDS = 60.0
REFUSAL_SECONDS = 10.0
_STRANGERS = 0.125
"""Fraction of this process's descriptors that clients of this host which have not proved anything
yet may hold. Those of other hosts may hold as much."""
_FOREIGN = wire.encode_refusal("it speaks only with processes of its own user")
_log = logging.getLogger("torsh_runtime")


def _log_refusal(reason: str) -> None:
    _log.warning("a store here turned away: %s", reason)


def handshake(secret: bytes, sock: socket.socket) -> ProtocolCoroutine:
    """Carry out the server's side of the handshake and return the session.

    Both sides prove that they know the secret. Raises Refused, after sending the client the reason,
    when it is a process of another user or does not know the secret.
    """
    try:
        check_user(sock, secret)
    except Refused:
        yield from send(sock, _FOREIGN)
        raise
    session = ServerSession(secret)
    yield from send(sock, session.greeting())
    try:
        while (answer := session.take()) is None:
            session.feed((yield from receive_some(sock, session.limit)))
        verdict = session.confirm(answer)
    except StoreError as error:
        yield from send(sock, wire.encode_refusal(str(error)))
        raise Refused(str(error)) from None
    yield from send(sock, verdict)
    return session


class StoreServer:
    """Serves `store` to clients that know `secret`; with an empty secret to all clients.

    Limits: a client has `handshake_timeout` seconds to prove that it knows the secret; before
    that its frames have at most 4 KiB, afterwards 64 MiB. If more than `max_strangers` clients of
    this host have not proved it yet, one of them is disconnected, and likewise for clients of other
    hosts; the default is an eighth of this process's limit of open files, and 1024 at most. Clients
    that have proved it are served first, however many others connect (see
    connections/acceptor.py). A connection may have 1024 requests, of about 64 MiB in total, under
    way. A client that takes no bytes for `send_timeout` seconds is disconnected. Malformed bytes
    end their connection and nothing else. Nothing is encrypted; with a secret every frame is
    authenticated. Other users of this host are refused at once: on a Unix socket always, on TCP
    when there is no secret (see connections/peer.py).

    `on_refused(reason)` is called for clients that were refused or sent malformed bytes: for each
    reason at once, and after some seconds with the number of further ones. By default it logs a
    warning.
    """

    def __init__(
        self,
        store: Store,
        secret: bytes,
        *,
        handshake_timeout: float = HANDSHAKE_SECONDS,
        send_timeout: float = SEND_SECONDS,
        max_strangers: int | None = None,
        on_refused: Callable[[str], None] = _log_refusal,
    ) -> None:
        self._store = store
        self._secret = secret
        self._handshake_timeout = handshake_timeout
        self._max_strangers = max_strangers or _most_strangers()
        self._send_timeout = send_timeout
        self._refusals = Refusals(on_refused, REFUSAL_SECONDS)
        self._acceptor: Acceptor | None = None
        self._is_private = False
        self._socket_file: Path | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, listen: str) -> str:
        """Listen and return the endpoint for clients, with the actual port in place of port 0.

        Raises ConfigError when `listen` is no endpoint; StoreError when it cannot be bound, or the
        server is already started.
        """
        if self._acceptor is not None:
            raise StoreError("this store server is already started; make another one")
        listener, endpoint = await listen_on(listen)
        self._is_private = is_private_address(listener)
        conversations = ConnectionMultiplexer(self._handshake_timeout, self._max_strangers)
        answer = partial(handshake, self._secret)
        self._acceptor = Acceptor(
            listener, conversations, answer, self._welcome, self._refusals.note
        )
        if isinstance(endpoint, UnixEndpoint) and not endpoint.path.startswith("@"):
            self._socket_file = Path(endpoint.path)
        return str(endpoint)

    @property
    def is_private(self) -> bool:
        """Return whether other hosts cannot reach the address on which it listens."""
        return self._is_private

    async def close(self) -> None:
        """Stop listening and cut all connections; the store itself stays open."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        if self._socket_file is not None:
            self._socket_file.unlink(missing_ok=True)
            self._socket_file = None
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait([*self._connections])
        self._refusals.close()

    def _welcome(self, outcome: Outcome) -> None:
        if isinstance(outcome.error, Refused):
            self._refusals.note(str(outcome.error))
        if outcome.error is not None:
            return  # it hung up, vanished, or was too slow
        sock = outcome.sock
        task = asyncio.get_running_loop().create_task(self._serve(sock, outcome.result))
        self._connections.add(task)
        task.add_done_callback(lambda task: self._forget(task, sock))

    def _forget(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._connections.discard(task)
        sock.close()  # here, as a task that is cancelled before it runs never takes it over

    async def _serve(self, sock: socket.socket, session: ServerSession) -> None:
        try:
            tune(sock)
            reader, writer = await asyncio.open_connection(sock=sock)
            connection = Connection(self._store, reader, writer, session, self._send_timeout)
            try:
                await connection.run()
            finally:
                connection.abort()
        except StoreError as error:
            self._refusals.note(str(error))
        except (OSError, EOFError):
            pass  # it hung up, or vanished


def _most_strangers() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MAX_STRANGERS
    return min(max(int(limit * _STRANGERS), 1), MAX_STRANGERS)
