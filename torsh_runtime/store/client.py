"""The blocking client of a StoreServer, for workers. It loads neither asyncio nor arrays."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

from torsh_runtime.closing import Closing
from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store import wire
from torsh_runtime.store.base import Compare, Entry, Event, Listing, Outcome, Write
from torsh_runtime.store.calls import FAILURES, Call, Calls
from torsh_runtime.store.channel import Channel, ChannelPool
from torsh_runtime.store.endpoint import TcpEndpoint, parse_endpoint

T = TypeVar("T")

REQUEST_SECONDS = 60.0


class StoreClient(Closing):
    """The Store port with blocking calls; any number of threads may share one client.

    Every call ends within `request_timeout` seconds (`wait`: that much after its own timeout)
    with StoreTimeout at the latest; it raises StoreError when the store refuses or the connection
    breaks. A request is never sent twice: after an error it may or may not have been carried out.
    The next call connects anew. Make one with `connect`, and close it.
    """

    def __init__(self, pool: ChannelPool, calls: Calls, *, owns_pool: bool = True) -> None:
        self._pool = pool
        self._calls = calls
        self._owns_pool = owns_pool

    @classmethod
    def connect(
        cls, endpoint: str, secret: bytes, timeout: float, request_timeout: float = REQUEST_SECONDS
    ) -> StoreClient:
        """Connect within `timeout` seconds, trying again while nobody listens there.

        ConfigError when the endpoint is malformed, StoreTimeout when no store answered in time,
        StoreError when it refused the secret or is no store.
        """
        where = parse_endpoint(endpoint)
        if isinstance(where, TcpEndpoint) and where.port == 0:
            raise StoreError(f"cannot connect to {endpoint}: port 0 is only for listening")
        pool = ChannelPool(where, secret)
        try:
            pool.open_first(time.monotonic() + timeout)
        except StoreError as error:
            raise StoreError(f"connecting to the store at {endpoint}: {error}") from None
        except (OSError, EOFError) as error:
            raise StoreTimeout(
                f"no store answered at {endpoint} within {timeout:g} s (last: {error}). See "
                f"whether the process that serves it runs and the endpoint can be reached."
            ) from None
        return cls(pool, Calls(str(where), request_timeout))

    @property
    def endpoint(self) -> str:
        """Where the store is."""
        return self._calls.endpoint

    def is_private(self) -> bool:
        """Whether the store is served by one of this user's (or root's) processes of this host, at
        an address that no other host can reach. StoreError when it does not answer.
        """
        call = self._calls.is_private()
        try:
            channel = self._pool.take(time.monotonic() + call.seconds)
            try:
                return channel.is_private()
            finally:
                self._pool.give(channel)
        except FAILURES as error:
            raise call.failure(error) from None

    def scoped(self, prefix: str) -> StoreClient:
        """The same store seen through a prefix that all keys get and no result shows.

        It shares this client's connections: closing the view closes nothing.
        """
        return StoreClient(self._pool, self._calls.within(prefix), owns_pool=False)

    def get(self, key: str) -> Entry | None:
        """The key as it stands, or None."""
        return self._ask(self._calls.get(key))

    def list(self, prefix: str) -> Listing:
        """All keys that begin with the prefix, in order of their names."""
        return self._ask(self._calls.list(prefix))

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write the key and return the new revision. An unknown lease raises StoreError."""
        return self._ask(self._calls.put(key, value, lease))

    def delete(self, key: str) -> bool:
        """Delete the key; whether it was there."""
        return self._ask(self._calls.delete(key))

    def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        """If every condition holds make all writes, as one change; otherwise none."""
        return self._ask(self._calls.transact(compares, writes))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter kept as decimal text, atomically; absent counts as 0. The new value."""
        return self._ask(self._calls.add(key, amount))

    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        """Wait until all the keys exist. StoreTimeout after `timeout` seconds names the missing."""
        return self._ask(self._calls.wait(keys, timeout))

    def watch(self, prefix: str, after: int, timeout: float | None = None) -> Watch:
        """Every change under the prefix with a revision > `after`, in order, without gaps.

        Iterating raises StoreTimeout when no event comes for `timeout` seconds (None: the
        client's request timeout); the watch goes on, so call next again. StoreError when the
        store closes or no longer holds that history. Close the watch, or use it in `with`.
        """
        call = self._calls.watch(prefix, after)
        try:
            channel = self._send(call, time.monotonic() + call.seconds)
        except FAILURES as error:
            raise call.failure(error) from None
        return Watch(self._pool, channel, call, call.seconds if timeout is None else timeout)

    def grant(self, ttl: float) -> int:
        """A new lease that ends `ttl` seconds after it was last kept alive; its id, > 0."""
        return self._ask(self._calls.grant(ttl))

    def keep_alive(self, lease: int) -> None:
        """Renew the lease. StoreError when it has ended: its keys are gone."""
        self._ask(self._calls.keep_alive(lease))

    def revoke(self, lease: int) -> None:
        """End the lease and delete its keys at once. Ending one that has ended is no error."""
        self._ask(self._calls.revoke(lease))

    def close(self) -> None:
        """Close the connections. Calls under way in other threads and watches end with StoreError.

        On a view made by `scoped` it does nothing.
        """
        if self._owns_pool:
            self._pool.close()

    def _ask(self, call: Call[T]) -> T:
        try:
            deadline = time.monotonic() + call.seconds
            return call.result(self._reply(self._send(call, deadline), deadline))
        except FAILURES as error:
            raise call.failure(error) from None

    def _send(self, call: Call[T], deadline: float) -> Channel:
        """Send the request on a connection of its own, which the reply will come on."""
        frame = wire.encode_request(call.request)
        channel = self._pool.take(deadline)
        try:
            channel.send(frame, deadline)
        except BaseException:
            self._pool.drop(channel)
            raise
        return channel

    def _reply(self, channel: Channel, deadline: float) -> wire.Reply:
        try:
            reply = wire.decode_reply(channel.receive(deadline))
        except BaseException:
            self._pool.drop(channel)
            raise
        self._pool.give(channel)
        return reply


class Watch(Closing):
    """The events of one watch, on a connection of its own; for one thread at a time."""

    def __init__(
        self, pool: ChannelPool, channel: Channel, call: Call[Event], timeout: float
    ) -> None:
        self._pool = pool
        self._channel = channel
        self._call = call
        self._timeout = timeout

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return self.next(self._timeout)

    def next(self, timeout: float) -> Event:
        """The next event. StoreTimeout when none comes for `timeout` seconds; call it again."""
        try:
            payload = self._channel.receive(time.monotonic() + timeout)
            return self._call.result(wire.decode_reply(payload))
        except TimeoutError:
            raise StoreTimeout(f"{self._call.label}: no event came for {timeout:g} s") from None
        except FAILURES as error:
            self.close()
            raise self._call.failure(error) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the watch."""
        self._pool.drop(self._channel)
