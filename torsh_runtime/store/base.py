"""The Store port: revisioned keys with transactions, leases and watches.

Every store, whether in memory, behind a socket or in etcd, implements all of this and passes one
contract suite. A revision is a store-wide counter that grows by one with each change, and so orders
all changes. A lease expresses liveness: its keys are deleted when it is not kept alive. Wall clocks
are never compared between hosts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, NamedTuple


class Entry(NamedTuple):
    """Holds the state of a key at some revision."""

    key: str
    value: bytes
    revision: int
    """The revision of the change that wrote this value (etcd's mod_revision)."""
    lease: int
    """The id of the lease that the key is bound to; 0 if there is none."""


class Listing(NamedTuple):
    """Holds all keys under a prefix, and the store's revision at which they were read."""

    items: tuple[Entry, ...]
    revision: int


class Event(NamedTuple):
    """Describes a change of a key: a put, or a deletion, by a client or by a lease's end."""

    kind: Literal["put", "delete"]
    key: str
    value: bytes
    """The new value; empty for a deletion."""
    revision: int
    lease: int = 0
    """The id of the lease that the key is bound to now; 0 if there is none."""


class Compare(NamedTuple):
    """States a condition of a transaction: the key was last changed at exactly this revision."""

    key: str
    revision: int
    """0 means that the key must not exist."""


class Put(NamedTuple):
    """Writes a key, bound to a lease unless `lease` is 0."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Deletes a key, if it exists."""

    key: str


Write = Put | Delete


class Outcome(NamedTuple):
    """Reports the result of a transaction."""

    succeeded: bool
    """True if all conditions held and all writes were made; False if none was."""
    revision: int
    """The store's revision after the transaction."""


class Store(ABC):
    """Defines the asynchronous port, for the agent. Workers use `client.StoreClient`, whose methods
    are the same but block.

    Keys are non-empty strings, values bytes. Every method may raise StoreError when the store
    cannot be reached or refuses, and StoreTimeout when it does not answer in time.
    """

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """Return the current state of the key, or None if it does not exist."""

    @abstractmethod
    async def list(self, prefix: str) -> Listing:
        """Return all keys that begin with the prefix, in the order of their names."""

    @abstractmethod
    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write the key, bound to `lease` unless that is 0, and return the new revision.

        Raises StoreError when the lease is unknown or has ended.
        """

    @abstractmethod
    async def delete(self, key: str) -> bool:
        """Delete the key and return whether it existed."""

    @abstractmethod
    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        """Make all writes as one change if every condition holds, and no write otherwise.

        Raises StoreError when two writes name the same key or a lease is unknown; nothing is
        written then.
        """

    @abstractmethod
    async def add(self, key: str, amount: int) -> int:
        """Add to a counter atomically and return its new value.

        The counter is kept as decimal text; an absent key counts as 0. The key keeps its lease.
        Raises StoreError when the value is no number, or the sum does not fit into 64 bits.
        """

    @abstractmethod
    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        """Wait until all the keys exist, and return their states by key.

        Raises StoreTimeout, which names the missing keys, after `timeout` seconds; StoreError when
        the timeout is negative or not finite, since no wait may be endless.
        """

    @abstractmethod
    def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        """Yield every change under the prefix with a revision > `after`, in order, without gaps.

        The changes of one transaction share a revision. Raises StoreError when the store closes or
        no longer holds that history; then list the prefix again and watch from the listing's
        revision. Use contextlib.aclosing to leave a watch early, so that its connection is
        released at once.
        """

    @abstractmethod
    async def grant(self, ttl: float) -> int:
        """Create a lease that ends `ttl` seconds after it was last kept alive; return its id, > 0.

        Raises StoreError unless `ttl` is a finite number > 0.
        """

    @abstractmethod
    async def keep_alive(self, lease: int) -> None:
        """Renew the lease. Raises StoreError when it has ended, and its keys are therefore gone."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End the lease and delete its keys at once. A lease that has already ended is no error."""

    @abstractmethod
    async def close(self) -> None:
        """Release the connection. Pending waits and watches end with StoreError."""


class StoreView(Store):
    """Presents the wrapped store in a different way; leases are passed on to it unchanged.

    The caller closes the wrapped store: closing the view closes nothing.
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
        """Do nothing, since the caller closes the wrapped store."""
