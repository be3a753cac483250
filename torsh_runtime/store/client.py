"""The blocking client of a StoreServer, for workers. It loads neither asyncio nor arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store import wire
from torsh_runtime.store.base import Compare, Entry, Event, Listing, Outcome, Write
from torsh_runtime.store.channel import Channel, ChannelPool
from torsh_runtime.store.closing import Closing
from torsh_runtime.store.endpoint import TcpEndpoint, parse_endpoint
from torsh_runtime.store.prefix import Scope

REQUEST_SECONDS = 60.0


class StoreClient(Closing):
    """The Store port with blocking calls; any number of threads may share one client.

    Every call ends within `request_timeout` seconds (`wait`: that much after its own timeout)
    with StoreTimeout at the latest; it raises StoreError when the store refuses or the connection
    breaks. A request is never sent twice: after an error it may or may not have been carried out.
    The next call connects anew. Make one with `connect`, and close it.
    """

    def __init__(
        self,
        pool: ChannelPool,
        request_timeout: float = REQUEST_SECONDS,
        scope: Scope = Scope(),  # noqa: B008  (immutable)
        *,
        owns_pool: bool = True,
    ) -> None:
        self._pool = pool
        self._timeout = request_timeout
        self._scope = scope
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
        return cls(pool, request_timeout)

    @property
    def endpoint(self) -> str:
        """Where the store is."""
        return str(self._pool.endpoint)

    def is_private(self) -> bool:
        """Whether the store is served by one of this user's (or root's) processes of this host, at
        an address that no other host can reach. StoreError when it does not answer.
        """
        with self._reporting(wire.Request(1, "is_private", ()), self._timeout):
            channel = self._pool.take(time.monotonic() + self._timeout)
            try:
                return channel.is_private()
            finally:
                self._pool.give(channel)

    def scoped(self, prefix: str) -> StoreClient:
        """The same store seen through a prefix that all keys get and no result shows.

        It shares this client's connections: closing the view closes nothing.
        """
        scope = self._scope.within(prefix)
        return StoreClient(self._pool, self._timeout, scope, owns_pool=False)

    def get(self, key: str) -> Entry | None:
        """The key as it stands, or None."""
        entry = self._call("get", self._key(key))
        return self._scope.entry(entry) if entry else None

    def list(self, prefix: str) -> Listing:
        """All keys that begin with the prefix, in order of their names."""
        items, revision = self._call("list", self._scope.prefix + prefix)
        return Listing(tuple(map(self._scope.entry, items)), revision)

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write the key and return the new revision. An unknown lease raises StoreError."""
        revision: int = self._call("put", self._key(key), value, lease)
        return revision

    def delete(self, key: str) -> bool:
        """Delete the key; whether it was there."""
        deleted: bool = self._call("delete", self._key(key))
        return deleted

    def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        """If every condition holds make all writes, as one change; otherwise none."""
        for item in (*compares, *writes):
            self._key(item.key)
        outcome: Outcome = self._call(
            "transact",
            [self._scope.compare(compare) for compare in compares],
            [self._scope.write(write) for write in writes],
        )
        return outcome

    def add(self, key: str, amount: int) -> int:
        """Add to a counter kept as decimal text, atomically; absent counts as 0. The new value."""
        total: int = self._call("add", self._key(key), amount)
        return total

    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        """Wait until all the keys exist. StoreTimeout after `timeout` seconds names the missing."""
        if not 0 <= timeout < math.inf:
            raise StoreError(f"a timeout must be a finite number of seconds >= 0, got {timeout}")
        names = [self._key(key) for key in keys]
        limit = timeout + self._timeout
        found = self._call("wait", names, float(timeout), limit=limit)
        entries = map(self._scope.entry, found.values())
        return {entry.key: entry for entry in entries}

    def watch(self, prefix: str, after: int, timeout: float | None = None) -> Watch:
        """Every change under the prefix with a revision > `after`, in order, without gaps.

        Iterating raises StoreTimeout when no event comes for `timeout` seconds (None: the
        client's request timeout); the watch goes on, so call next again. StoreError when the
        store closes or no longer holds that history. Close the watch, or use it in `with`.
        """
        request = wire.Request(1, "watch", (self._scope.prefix + prefix, after))
        label = f"watch of {self._scope.prefix + prefix!r} at {self.endpoint}"
        with self._reporting(request, self._timeout):
            deadline = time.monotonic() + self._timeout
            channel = self._pool.take(deadline)
            self._send_or_drop(channel, request, deadline)
        seconds = self._timeout if timeout is None else timeout
        return Watch(self._pool, channel, self._scope, seconds, label)

    def grant(self, ttl: float) -> int:
        """A new lease that ends `ttl` seconds after it was last kept alive; its id, > 0."""
        lease: int = self._call("grant", float(ttl))
        return lease

    def keep_alive(self, lease: int) -> None:
        """Renew the lease. StoreError when it has ended: its keys are gone."""
        self._call("keep_alive", lease)

    def revoke(self, lease: int) -> None:
        """End the lease and delete its keys at once. Ending one that has ended is no error."""
        self._call("revoke", lease)

    def close(self) -> None:
        """Close the connections. Calls under way in other threads and watches end with StoreError.

        On a view made by `scoped` it does nothing.
        """
        if self._owns_pool:
            self._pool.close()

    def _key(self, key: str) -> str:
        if not key:
            raise StoreError("a key must be a non-empty string")
        return self._scope.prefix + key

    def _call(self, op: str, *args: object, limit: float | None = None) -> Any:
        seconds = self._timeout if limit is None else limit
        request = wire.Request(1, op, args)
        with self._reporting(request, seconds):
            deadline = time.monotonic() + seconds
            channel = self._pool.take(deadline)
            self._send_or_drop(channel, request, deadline)
            reply = self._receive_or_drop(channel, deadline)
            if reply.status == wire.FAILURE:
                raise wire.decode_failure(reply.body)
            return wire.decode_result(op, reply.body)

    def _send_or_drop(self, channel: Channel, request: wire.Request, deadline: float) -> None:
        try:
            channel.send(wire.encode_request(request), deadline)
        except BaseException:
            self._pool.drop(channel)
            raise

    def _receive_or_drop(self, channel: Channel, deadline: float) -> wire.Reply:
        try:
            reply = wire.decode_reply(channel.receive(deadline))
        except BaseException:
            self._pool.drop(channel)
            raise
        self._pool.give(channel)
        return reply

    @contextmanager
    def _reporting(self, request: wire.Request, seconds: float) -> Generator[None]:
        """Say in each error which operation at which endpoint it was."""
        try:
            yield
        except (OSError, EOFError, StoreError) as error:
            raise _explain(f"{_describe(request)} at {self.endpoint}", error, seconds) from None


class Watch(Closing):
    """The events of one watch, on a connection of its own; for one thread at a time."""

    def __init__(
        self, pool: ChannelPool, channel: Channel, scope: Scope, timeout: float, label: str
    ) -> None:
        self._pool = pool
        self._channel = channel
        self._scope = scope
        self._timeout = timeout
        self._label = label

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return self.next(self._timeout)

    def next(self, timeout: float) -> Event:
        """The next event. StoreTimeout when none comes for `timeout` seconds; call it again."""
        try:
            reply = wire.decode_reply(self._channel.receive(time.monotonic() + timeout))
            if reply.status != wire.EVENT:
                raise wire.decode_failure(reply.body)
            return self._scope.event(wire.decode_event(reply.body))
        except TimeoutError:
            raise StoreTimeout(f"{self._label}: no event came for {timeout:g} s") from None
        except (OSError, EOFError, StoreError) as error:
            self.close()
            raise _explain(self._label, error, timeout) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the watch."""
        self._pool.drop(self._channel)


def _describe(request: wire.Request) -> str:
    if not request.args:
        return request.op
    subject = request.args[0]
    if isinstance(subject, list):
        names = [item if isinstance(item, str) else item.key for item in subject[:4]]
        more = ", …" if len(subject) > 4 else ""
        return f"{request.op}({', '.join(map(repr, names))}{more})"
    return f"{request.op}({subject!r})"


def _explain(what: str, error: Exception, seconds: float) -> StoreError:
    if isinstance(error, StoreTimeout):
        return StoreTimeout(f"{what}: {error}")
    if isinstance(error, StoreError):
        return StoreError(f"{what}: {error}")
    if isinstance(error, TimeoutError):
        return StoreTimeout(
            f"{what}: the store did not answer within {seconds:g} s. The process that serves it "
            f"is overloaded, stopped or cut off; look at its output."
        )
    return StoreError(
        f"{what}: the connection failed ({error}). The process that serves the store has ended "
        f"or cannot be reached; look at its output."
    )
