"""The asyncio client of a StoreServer, for agents: a store served by a different process."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from torsh_runtime.connections.peer import check_server
from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.base import (
    Compare,
    Entry,
    Event,
    Listing,
    Outcome,
    Store,
    Write,
)
from torsh_runtime.store.calls import FAILURES, Call, Calls
from torsh_runtime.store.endpoint import Endpoint, UnixEndpoint, parse_endpoint
from torsh_runtime.store.session import ClientSession
from torsh_runtime.store.sockets import FULL_PAUSE, check_not_itself, tune

T = TypeVar("T")

REQUEST_SECONDS = 10.0
_BUSY = 512
"""The largest number of requests under way on a connection. The server accepts twice as many."""
_CHUNK = 256 << 10


class RemoteStore(Store):
    """Provides the Store port over a StoreServer. Use it from one event loop only, and close it.

    Every call ends within `request_timeout` seconds (`wait`: that long after its own timeout) with
    StoreTimeout at the latest. A request is never sent twice: after an error it may or may not
    have been carried out. The next call connects anew, by a single attempt; a StoreError whose
    cause is a ConnectionRefusedError means that no process listens there. Requests share
    connections; each watch has one of its own:

        async with aclosing(store.watch("members/", listing.revision)) as events:
            async for event in events: ...
    """

    def __init__(
        self, endpoint: str, secret: bytes, request_timeout: float = REQUEST_SECONDS
    ) -> None:
        """Create a client without connecting.

        Args:
            endpoint: "unix:@name", "unix:/path" or "tcp:host:port".
            secret: the job's secret; empty for a store that has none.
            request_timeout: seconds for each call.

        Raises ConfigError when the endpoint is malformed.
        """
        self._endpoint = parse_endpoint(endpoint)
        self._secret = secret
        self._calls = Calls(str(self._endpoint), request_timeout)
        self._lanes: list[_Lane] = []
        self._opening = asyncio.Lock()
        self._watching: set[_Lane] = set()
        self._closed = False

    async def get(self, key: str) -> Entry | None:
        return await self._ask(self._calls.get(key))

    async def timed_get(self, key: str) -> tuple[Entry | None, float, float]:
        """Return what get() returns, and the moments at which the request was about to be sent and
        the reply was received, by time.monotonic()."""
        call = self._calls.get(key)
        reply = await self._reply(call)
        return call.result(reply), reply.sent, reply.came

    async def list(self, prefix: str) -> Listing:
        return await self._ask(self._calls.list(prefix))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return await self._ask(self._calls.put(key, value, lease))

    async def delete(self, key: str) -> bool:
        return await self._ask(self._calls.delete(key))

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        return await self._ask(self._calls.transact(compares, writes))

    async def add(self, key: str, amount: int) -> int:
        return await self._ask(self._calls.add(key, amount))

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        return await self._ask(self._calls.wait(keys, timeout))

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        call = self._calls.watch(prefix, after)
        lane = await self._within(call, self._open())
        self._watching.add(lane)
        try:
            await self._within(call, lane.send(call.request))
            while True:
                yield call.result(await self._explained(call, lane.next_reply()))
        finally:
            self._watching.discard(lane)
            lane.abort()

    async def grant(self, ttl: float) -> int:
        return await self._ask(self._calls.grant(ttl))

    async def keep_alive(self, lease: int) -> None:
        await self._ask(self._calls.keep_alive(lease))

    async def revoke(self, lease: int) -> None:
        await self._ask(self._calls.revoke(lease))

    async def close(self) -> None:
        self._closed = True
        lanes = [*self._lanes, *self._watching]
        self._lanes.clear()
        for lane in lanes:
            lane.abort()
        for lane in lanes:
            await lane.closed()

    async def _ask(self, call: Call[T]) -> T:
        return call.result(await self._reply(call))

    async def _reply(self, call: Call[T]) -> wire.Reply:
        return await self._within(call, self._exchange(call.request))

    async def _exchange(self, request: wire.Request) -> wire.Reply:
        lane = await self._lane()
        try:
            return await lane.ask(request)
        except (OSError, EOFError):
            self._drop(lane)
            raise

    async def _lane(self) -> _Lane:
        """Return a connection with room for another request; open one if there is none."""
        async with self._opening:
            for lane in self._lanes:
                if lane.is_open and lane.load < _BUSY:
                    return lane
            self._lanes = [lane for lane in self._lanes if lane.is_open]
            lane = await self._open()
            lane.read_replies()
            self._lanes.append(lane)
            return lane

    def _drop(self, lane: _Lane) -> None:
        lane.abort()
        if lane in self._lanes:
            self._lanes.remove(lane)

    async def _open(self) -> _Lane:
        if self._closed:
            raise StoreError("this client is closed; make another one")
        lane = await _Lane.open(self._endpoint, self._secret)
        if self._closed:
            lane.abort()
            raise StoreError("this client was closed meanwhile; make another one")
        return lane

    async def _within(self, call: Call[Any], work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(call.seconds):
                return await self._explained(call, work)
        except StoreError:
            raise
        except TimeoutError as late:
            if call.is_prompt:
                self._suspect()
            raise call.failure(late) from None

    def _suspect(self) -> None:
        """Close the connections for requests, as one of them did not answer in time."""
        for lane in [*self._lanes]:
            self._drop(lane)

    async def _explained(self, call: Call[Any], work: Awaitable[T]) -> T:
        """Await `work`; if it raises one of FAILURES, add the call's description to the error."""
        try:
            return await work
        except FAILURES as error:
            cause = error.__cause__ if isinstance(error, StoreError) else error
            raise call.failure(error) from cause


class _Lane:
    """Represents a connection on which requests and replies of many calls overlap."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._session = ClientSession(secret)
        self._asked: dict[int, asyncio.Future[wire.Reply]] = {}
        self._last_id = 0
        self._came = 0.0  # when something was received last
        self._replies: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint, secret: bytes) -> _Lane:
        """Connect, by a single attempt, and let both sides prove that they know the secret."""
        sock = await _connect(endpoint)
        reader, writer = await asyncio.open_connection(sock=sock)
        lane = cls(reader, writer, secret)
        try:
            await lane._authenticate(sock, secret)
        except BaseException:
            lane.abort()
            raise
        return lane

    @property
    def is_open(self) -> bool:
        return not self._writer.is_closing() and not self._reader.at_eof()

    @property
    def load(self) -> int:
        return len(self._asked)

    def read_replies(self) -> None:
        """Start the task that hands replies to the callers of ask()."""
        self._replies = asyncio.get_running_loop().create_task(self._read_replies())

    async def ask(self, request: wire.Request) -> wire.Reply:
        """Send the request under a new id and wait for its reply."""
        self._last_id += 1
        request = request._replace(id=self._last_id)
        reply: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
        self._asked[request.id] = reply
        sent = time.monotonic()
        try:
            await self.send(request)
            return (await reply)._replace(sent=sent)
        finally:
            self._asked.pop(request.id, None)

    async def send(self, request: wire.Request) -> None:
        self._writer.write(self._session.pack(wire.encode_request(request)))
        await self._writer.drain()

    async def next_reply(self) -> wire.Reply:
        return wire.decode_reply(await self._frame())

    def abort(self) -> None:
        """Cut the connection; calls that wait for a reply fail."""
        self._writer.transport.abort()
        if self._replies:
            self._replies.cancel()
        self._fail(EOFError("it was closed"))

    async def closed(self) -> None:
        """Wait until an aborted connection and its task have ended."""
        if self._replies:
            await asyncio.wait([self._replies])
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _read_replies(self) -> None:
        try:
            while True:
                reply = await self.next_reply()
                asked = self._asked.pop(reply.id, None)
                if asked and not asked.done():  # else its caller has stopped waiting
                    asked.set_result(reply._replace(came=self._came))
        except (OSError, EOFError, StoreError) as error:
            self._writer.transport.abort()
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(error)
        self._asked.clear()

    async def _frame(self) -> bytes:
        while (payload := self._session.take()) is None:
            data = await self._reader.read(_CHUNK)
            self._came = time.monotonic()
            if not data:
                raise EOFError("the store hung up")
            self._session.feed(data)
        return payload

    async def _authenticate(self, sock: socket.socket, secret: bytes) -> None:
        greeting = await self._frame()
        answer = self._session.answer(greeting, partial(check_server, sock, secret))
        self._writer.write(answer)
        await self._writer.drain()
        self._session.confirm(await self._frame())


async def _connect(endpoint: Endpoint) -> socket.socket:
    """Connect, trying each address of the host once. Raises the last OSError when all fail."""
    if isinstance(endpoint, UnixEndpoint):
        return await _connect_to(socket.AF_UNIX, endpoint.address)
    loop = asyncio.get_running_loop()
    failure = OSError(f"{endpoint.host} has no address")
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in found:
        try:
            return await _connect_to(family, address)
        except OSError as error:
            failure = error
    try:
        raise failure
    finally:
        del failure  # else it and its traceback keep each other, and every frame below, alive


async def _connect_to(family: int, address: str | tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family == socket.AF_UNIX:
            await _connect_unix(sock, address)
        else:
            await asyncio.get_running_loop().sock_connect(sock, address)
        check_not_itself(sock)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect_unix(sock: socket.socket, address: str | tuple[object, ...]) -> None:
    while True:
        try:
            return sock.connect(address)  # at once, or not at all; asyncio cannot tell these apart
        except BlockingIOError:  # too many wait at this socket
            await asyncio.sleep(FULL_PAUSE)
