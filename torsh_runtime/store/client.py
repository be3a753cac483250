"""The blocking client of a StoreServer, for workers. It imports neither asyncio nor arrays."""

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
    """Provides the Store port with blocking calls; any number of threads may share one client.

    Every call ends within `request_timeout` seconds (`wait`: that long after its own timeout) with
    StoreTimeout at the latest. It raises StoreError when the store refuses or the connection
    breaks. A request is never sent twice: after an error it may or may not have been carried out.
    The next call connects anew. Create a client with `connect`, and close it:

        with StoreClient.connect("tcp:host:29400", secret, timeout=30.0) as client:
            client.put("key", b"value")
    """

    def __init__(self, pool: ChannelPool, calls: Calls, *, owns_pool: bool = True) -> None:
        self._pool = pool
        self._calls = calls
        self._owns_pool = owns_pool

    @classmethod
    def connect(
        cls, endpoint: str, secret: bytes, timeout: float, request_timeout: float = REQUEST_SECONDS
    ) -> StoreClient:
        """Connect within `timeout` seconds, and try again while no process listens there.

        Args:
            endpoint: "unix:@name", "unix:/path" or "tcp:host:port".
            secret: the job's secret; empty for a store that has none.
            timeout: seconds for connecting.
            request_timeout: seconds for each call.

        Raises ConfigError when the endpoint is malformed, StoreTimeout when no store answered in
        time, StoreError when the store refused the secret or no store listens there.
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
        """Return the endpoint at which the store listens."""
        return self._calls.endpoint

    def is_private(self) -> bool:
        """Return whether a process of this host, run by this user or root, serves the store at an
        address that no other host can reach. Raises StoreError when the store does not answer.
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
        """Return a view of the store that adds the prefix to all keys, and removes it in results.

        The view shares this client's connections: closing it closes nothing.
        """
        return StoreClient(self._pool, self._calls.within(prefix), owns_pool=False)

    def within(self, seconds: float) -> StoreClient:
        """Return a view of the store whose calls end within so many seconds.

        The view shares this client's connections: closing it closes nothing.
        """
        return StoreClient(self._pool, self._calls.bounded(seconds), owns_pool=False)

    def get(self, key: str) -> Entry | None:
        """Return the current state of the key, or None if it does not exist."""
        return self._ask(self._calls.get(key))

    def list(self, prefix: str) -> Listing:
        """Return all keys that begin with the prefix, in the order of their names."""
        return self._ask(self._calls.list(prefix))

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write the key, bound to `lease` unless that is 0, and return the new revision.

        Raises StoreError when the lease is unknown or has ended.
        """
        return self._ask(self._calls.put(key, value, lease))

    def delete(self, key: str) -> bool:
        """Delete the key and return whether it existed."""
        return self._ask(self._calls.delete(key))

    def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        """Make all writes as one change if every condition holds, and no write otherwise.

        Raises StoreError when two writes name the same key or a lease is unknown.
        """
        return self._ask(self._calls.transact(compares, writes))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter atomically and return its new value.

        The counter is kept as decimal text; an absent key counts as 0. Raises StoreError when the
        value is no number, or the sum does not fit into 64 bits.
        """
        return self._ask(self._calls.add(key, amount))

    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        """Wait until all the keys exist, and return their states by key.

        Raises StoreTimeout, which names the missing keys, after `timeout` seconds; StoreError when
        the timeout is negative or not finite.
        """
        return self._ask(self._calls.wait(keys, timeout))

    def watch(self, prefix: str, after: int, timeout: float | None = None) -> Watch:
        """Watch every change under the prefix with a revision > `after`, in order, without gaps.

        Iterating over the result raises StoreTimeout when no event comes for `timeout` seconds
        (None: the client's request timeout); the watch continues, so call next again. It raises
        StoreError when the store closes or no longer holds that history. Close the watch, or use
        it in `with`.
        """
        call = self._calls.watch(prefix, after)
        try:
            channel = self._send(call, time.monotonic() + call.seconds)
        except FAILURES as error:
            raise call.failure(error) from None
        return Watch(self._pool, channel, call, call.seconds if timeout is None else timeout)

    def grant(self, ttl: float) -> int:
        """Create a lease that ends `ttl` seconds after it was last kept alive; return its id, > 0.

        Raises StoreError unless `ttl` is a finite number > 0.
        """
        return self._ask(self._calls.grant(ttl))

    def keep_alive(self, lease: int) -> None:
        """Renew the lease. Raises StoreError when it has ended, and its keys are therefore gone."""
        self._ask(self._calls.keep_alive(lease))

    def revoke(self, lease: int) -> None:
        """End the lease and delete its keys at once. A lease that has already ended is no error."""
        self._ask(self._calls.revoke(lease))

    def close(self) -> None:
        """Close the connections. Watches and calls under way in other threads end with StoreError.

        On a view that `scoped` returned it does nothing.
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
        """Send the request on a connection of its own, and return that for receiving the reply."""
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
    """Iterates over the events of a watch, on a connection of its own; for one thread at a time."""

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
        """Return the next event.

        Raises StoreTimeout when none comes for `timeout` seconds, after which it may be called
        again; StoreError when the watch has failed, which also closes it.
        """
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
