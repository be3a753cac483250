"""The server's side of a client's connection to a StoreServer."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from contextvars import ContextVar

from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.base import Store
from torsh_runtime.store.session import ServerSession

MAX_IN_FLIGHT = 1024
"""The largest number of a connection's requests under way; further ones are refused."""
MAX_IN_FLIGHT_BYTES = wire.MAX_FRAME
"""The largest number of bytes of such requests; a single larger request is accepted."""
CHUNK = 256 << 10
ARRIVED: ContextVar[float] = ContextVar("ARRIVED")
"""Moment of time.monotonic() at which the request being answered was received, before anything
waited."""


class Connection:
    """Serves a client that has proved that it knows the secret, until the connection ends.

    The memory held for a client is bounded: at most MAX_IN_FLIGHT requests are under way, and
    replies are encoded one at a time, each only when the socket has taken the one before. A client
    that takes no bytes for `send_timeout` seconds is disconnected.
    """

    def __init__(
        self,
        store: Store,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session: ServerSession,
        send_timeout: float,
    ) -> None:
        self._store = store
        self._reader = reader
        self._writer = writer
        self._send_timeout = send_timeout
        self._sending = asyncio.Lock()
        self._session = session
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes_in_flight = 0
        self._came = 0.0  # when something was received last

    async def run(self) -> None:
        """Answer requests until the connection ends, then cancel those still under way.

        Raises EOFError or OSError when the client hangs up, StoreError when it sends a malformed
        frame.
        """
        try:
            while True:
                payload = await self._frame()
                request = wire.decode_request(payload)
                if self._is_full():
                    await self._fail(request, _refusal())
                else:
                    self._begin(request, len(payload))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def abort(self) -> None:
        """Cut the connection, which makes `run` end with an error."""
        self._writer.transport.abort()

    async def _frame(self) -> bytes:
        while (payload := self._session.take()) is None:
            data = await self._reader.read(min(CHUNK, self._session.limit))
            self._came = time.monotonic()
            if not data:
                raise EOFError("the client hung up")
            self._session.feed(data)
        return payload

    async def _send(self, frame: bytes) -> None:
        """Hand the frame to the socket. If that fails, cut the connection and raise EOFError."""
        try:
            self._writer.write(self._session.pack(frame))
            async with asyncio.timeout(self._send_timeout):
                await self._writer.drain()
        except OSError as error:
            self.abort()
            raise EOFError(f"the client takes no replies: {error}") from None

    def _is_full(self) -> bool:
        return len(self._tasks) >= MAX_IN_FLIGHT or self._bytes_in_flight >= MAX_IN_FLIGHT_BYTES

    def _begin(self, request: wire.Request, size: int) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._bytes_in_flight -= size

        self._bytes_in_flight += size
        ARRIVED.set(self._came)
        task = asyncio.create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def _answer(self, request: wire.Request) -> None:
        try:
            if request.op == "watch":
                await self._forward_events(request)
            else:
                result = await getattr(self._store, request.op)(*request.args)
                async with self._sending:
                    await self._send(wire.encode_result(request, result))
        except EOFError:
            return
        except StoreError as error:
            await self._fail(request, error)
        except Exception as error:  # a fault of the store must not leave the client waiting
            fault = f"{type(error).__name__}: {error}"
            await self._fail(request, StoreError(f"the store itself failed with {fault}"))

    async def _forward_events(self, request: wire.Request) -> None:
        async with aclosing(self._store.watch(*request.args)) as events:
            async for event in events:
                async with self._sending:
                    await self._send(wire.encode_event(request, event))
        raise StoreError("the watch ended. Watch again from the last revision seen.")

    async def _fail(self, request: wire.Request, error: StoreError) -> None:
        with suppress(EOFError):
            async with self._sending:
                await self._send(wire.encode_failure(request, error))


def _refusal() -> StoreError:
    return StoreError(
        f"this connection has {MAX_IN_FLIGHT} requests or {MAX_IN_FLIGHT_BYTES} bytes under way. "
        f"Wait for some of them, or open another connection."
    )
