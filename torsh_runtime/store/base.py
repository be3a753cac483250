"""The Store port: revisioned keys with transactions, leases and watches.

Every store, whether in memory, behind a socket or in etcd, implements all of this and passes one
contract suite. A revision is a store-wide counter that grows by one with each change; it orders
everything. A lease is liveness: its keys vanish when it is not kept alive. No wall clock is ever
compared between hosts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, NamedTuple


class Entry(NamedTuple):
    """One key as it stood at some revision."""

    key: str
    value: bytes
    revision: int
    """The revision of the change that wrote this value (etcd's mod_revision)."""
    lease: int
    """The lease the key is bound to; 0 is none."""


class Listing(NamedTuple):
    """All keys under a prefix, and the store's revision they were read at."""

    items: tuple[Entry, ...]
    revision: int


class Event(NamedTuple):
    """One change: a put, a deletion or a lease's end (which deletes its keys)."""

    kind: Literal["put", "delete"]
    key: str
    value: bytes
    """The new value; empty for a deletion."""
    revision: int
    lease: int = 0
    """The lease that the key is bound to now; 0 is none."""


class Compare(NamedTuple):
    """One condition of a transaction: the key was last changed at exactly this revision."""

    key: str
    revision: int
    """0 means that the key must not exist."""


class Put(NamedTuple):
    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    key: str


Write = Put | Delete


class Outcome(NamedTuple):
    """What became of a transaction."""

    succeeded: bool
    """Whether all conditions held and all writes were made."""
    revision: int
    """The store's revision after it."""


class Store(ABC):
    """Asynchronous port, for the agent. Workers use `client.StoreClient`, its blocking twin.

    Keys are non-empty strings, values bytes. Every method may raise StoreError when the store
    cannot be reached or refuses, and StoreTimeout when it does not answer in time.
    """

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """The key as it stands, or None."""

    @abstractmethod
    async def list(self, prefix: str) -> Listing:
        """All keys that begin with the prefix, in order of their names."""

    @abstractmethod
    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write the key and return the new revision. An unknown lease raises StoreError."""

    @abstractmethod
    async def delete(self, key: str) -> bool:
        """Delete the key; whether it was there."""

    @abstractmethod
    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        """If every condition holds make all writes, as one change; otherwise none.

        StoreError when two writes name the same key or a lease is unknown; nothing is written.
        """

    @abstractmethod
    async def add(self, key: str, amount: int) -> int:
        """Add to a counter kept as decimal text, atomically; absent counts as 0. The new value.

        The key keeps its lease. StoreError when the value is no number, or leaves 64 bits.
        """

    @abstractmethod
    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        """Wait until all the keys exist. StoreTimeout after `timeout` seconds names the missing.

        StoreError when the timeout is not finite: no wait is endless.
        """

    @abstractmethod
    def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        """Every change under the prefix with a revision > `after`, in order, without gaps.

        The changes of one transaction share a revision. Ends with StoreError when the store
        closes or no longer holds that history; list again and watch from there. Leave a watch
        early with contextlib.aclosing, so that what it holds is let go at once.
        """

    @abstractmethod
    async def grant(self, ttl: float) -> int:
        """A new lease that ends `ttl` seconds after it was last kept alive; its id, > 0."""

    @abstractmethod
    async def keep_alive(self, lease: int) -> None:
        """Renew the lease. StoreError when it has ended: its keys are gone."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End the lease and delete its keys at once. Ending one that has ended is no error."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connection. Pending waits and watches end with StoreError."""


class StoreView(Store):
    """Another store, seen or written otherwise; its leases are the other's. It is the caller's to
    close: closing this closes nothing.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def grant(self, ttl: float) -> int:
        return await self._store.grant(ttl)

    async def keep_alive(self, lease: int) -> None:
        await self._store.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        await self._store.revoke(lease)

    async def close(self) -> None:
        """Nothing is held."""
