"""Serves any Store to other processes over a Unix or TCP socket."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from pathlib import Path

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Store
from torsh_runtime.store.connection import Connection
from torsh_runtime.store.endpoint import UnixEndpoint
from torsh_runtime.store.listener import listen_on
from torsh_runtime.store.sockets import tune

HANDSHAKE_SECONDS = 5.0
SEND_SECONDS = 60.0
_STRANGERS, _MOST_STRANGERS = 0.25, 1024
"""Part of this process's descriptors that clients may hold that have not proven anything yet."""


class StoreServer:
    """Serves `store` to clients that know `secret`; an empty secret lets everybody in.

    Limits: a client has `handshake_timeout` seconds to prove that it knows the secret; before
    that its frames have at most 4 KiB, afterwards 64 MiB. Of more than `max_strangers` clients
    that have not done so the oldest is cut off; by default a quarter of this process's limit of
    open files, and 1024 at most. One connection may have 1024 requests
    and about 64 MiB of them under way. A client that takes no bytes for `send_timeout` seconds
    is cut off. Bad bytes end the connection they came on and nothing else. Traffic is
    authenticated when a connection opens, and not encrypted: keep it within the cluster's network.

    `on_refused(reason)` is told of each client that was turned away or sent nonsense.
    """

    def __init__(
        self,
        store: Store,
        secret: bytes,
        *,
        handshake_timeout: float = HANDSHAKE_SECONDS,
        send_timeout: float = SEND_SECONDS,
        max_strangers: int | None = None,
        on_refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._store = store
        self._secret = secret
        self._handshake_timeout = handshake_timeout
        self._send_timeout = send_timeout
        self._max_strangers = max_strangers or _most_strangers()
        self._on_refused = on_refused
        self._server: asyncio.Server | None = None
        self._closing = False
        self._socket_file: Path | None = None
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._strangers: dict[Connection, None] = {}
        """In the order in which they came."""

    async def start(self, listen: str) -> str:
        """Listen and return the endpoint for clients, with the port that port 0 became.

        ConfigError when `listen` is no endpoint; StoreError when it cannot be bound.
        """
        if self._server is not None:
            raise StoreError("this store server is already started; make another one")
        sock, endpoint = await listen_on(listen)
        self._server = await asyncio.start_server(self._accept, sock=sock)
        if isinstance(endpoint, UnixEndpoint) and not endpoint.path.startswith("@"):
            self._socket_file = Path(endpoint.path)
        return str(endpoint)

    async def close(self) -> None:
        """Stop listening and cut all connections; the store itself stays open."""
        if self._server is None:
            return
        self._closing = True
        self._server.close()
        if self._socket_file is not None:
            self._socket_file.unlink(missing_ok=True)
            self._socket_file = None
        while self._connections:
            for connection in self._connections.values():
                connection.abort()
            await asyncio.wait([*self._connections])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:
            writer.transport.abort()
            return
        connection = Connection(self._store, reader, writer, self._send_timeout)
        self._admit(connection)
        task = asyncio.get_running_loop().create_task(self._serve(connection, writer))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    def _admit(self, stranger: Connection) -> None:
        if len(self._strangers) >= self._max_strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        self._strangers[stranger] = None

    async def _serve(self, connection: Connection, writer: asyncio.StreamWriter) -> None:
        try:
            tune(writer.get_extra_info("socket"))
            async with asyncio.timeout(self._handshake_timeout):
                await connection.authenticate(self._secret)
            self._strangers.pop(connection, None)
            await connection.run()
        except StoreError as error:
            self._on_refused(str(error))
        except (OSError, EOFError):
            pass  # hung up, vanished, or too slow in its handshake
        finally:
            self._strangers.pop(connection, None)
            connection.abort()


def _most_strangers() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_STRANGERS
    return min(max(int(limit * _STRANGERS), 1), _MOST_STRANGERS)
