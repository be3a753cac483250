"""A store that a worker serves itself, for scripts started by hand, where no agent serves one."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress

from torsh_runtime.closing import Closing
from torsh_runtime.errors import StoreTimeout
from torsh_runtime.store.endpoint import Endpoint, TcpEndpoint
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.server import StoreServer

START_SECONDS = 30.0
CLOSE_SECONDS = 10.0
_PAUSES = (0.05, 1.0)  # shortest and longest seconds between two look-ups of a name
_log = logging.getLogger("torsh_runtime")


def await_name(endpoint: Endpoint, deadline: float) -> None:
    """Wait until the endpoint's host name can be resolved, or the deadline of time.monotonic().

    The names of Kubernetes' pods become known some time after the pods start. The deadline raises
    nothing: the caller that then uses the name reports the error.
    """
    pause = _PAUSES[0]
    while isinstance(endpoint, TcpEndpoint) and time.monotonic() + pause < deadline:
        try:
            socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            break
        except socket.gaierror as error:
            if pause == _PAUSES[0]:
                _log.warning("waiting for the address of %s: %s", endpoint.host, error.strerror)
        time.sleep(pause)
        pause = min(2 * pause, _PAUSES[1])


class HostedStore(Closing):
    """Runs a MemoryStore and its StoreServer in one daemon thread. Use `start`, and close it."""

    def __init__(self, listen: str, secret: bytes) -> None:
        self._is_private = False
        self._endpoint: Future[str] = Future()
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(listen, secret), name="torsh-store", daemon=True
        )

    @classmethod
    def start(cls, listen: str, secret: bytes) -> HostedStore:
        """Serve at the endpoint `listen`, and return once clients can connect.

        Raises ConfigError when `listen` is no endpoint; StoreError when it cannot be bound.
        """
        hosted = cls(listen, secret)
        hosted._thread.start()
        try:
            hosted._endpoint.result(START_SECONDS)
        except BaseException:
            hosted.close()
            raise
        return hosted

    @property
    def endpoint(self) -> str:
        """Return the endpoint for clients, with the actual port in place of port 0."""
        return self._endpoint.result(0)

    @property
    def is_private(self) -> bool:
        """Return whether other hosts cannot reach the store."""
        return self._is_private

    def close(self) -> None:
        """End all connections and the thread.

        Raises StoreTimeout when the thread does not end within CLOSE_SECONDS.
        """
        loop, stop = self._ready.result(START_SECONDS)
        with suppress(RuntimeError):  # the loop may have ended already
            loop.call_soon_threadsafe(stop.set)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            raise StoreTimeout(f"the store's thread did not end within {CLOSE_SECONDS:g} s")

    def _run(self, listen: str, secret: bytes) -> None:
        asyncio.run(self._serve(listen, secret))

    async def _serve(self, listen: str, secret: bytes) -> None:
        stop = asyncio.Event()
        self._ready.set_result((asyncio.get_running_loop(), stop))
        store = MemoryStore()
        server = StoreServer(store, secret)
        try:
            endpoint = await server.start(listen)
            self._is_private = server.is_private
            self._endpoint.set_result(endpoint)
        except Exception as error:
            self._endpoint.set_exception(error)
            return
        await stop.wait()
        await server.close()
        await store.close()
