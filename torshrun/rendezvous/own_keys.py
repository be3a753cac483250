"""A round's store as the workers of one node see it, some of whose keys are their agent's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import (
    Compare,
    Entry,
    Event,
    Listing,
    Outcome,
    Store,
    StoreView,
    Write,
)


class StoreWithOwnKeys(StoreView):
    """Keeps the keys that begin with a prefix in a store of its own, and all others in another.

    What this node's agent and its workers tell each other so survives the loss of another node.
    Leases are the other store's. A request for keys of both stores is refused.
    """

    def __init__(self, store: Store, prefix: str, own: Store) -> None:
        """Use `own` for the keys that begin with `prefix`, and `store` for all others."""
        super().__init__(store)
        self._prefix, self._own = prefix, own

    def _at(self, *keys: str) -> Store:
        """Return the store that has these keys. Raises StoreError if both have some."""
        own = {key.startswith(self._prefix) for key in keys}
        if len(own) > 1:
            raise StoreError(f"keys within and outside of {self._prefix} are in different stores")
        return self._own if own == {True} else self._store

    async def get(self, key: str) -> Entry | None:
        return await self._at(key).get(key)

    async def list(self, prefix: str) -> Listing:
        return await self._at(prefix).list(prefix)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return await self._at(key).put(key, value, lease)

    async def delete(self, key: str) -> bool:
        return await self._at(key).delete(key)

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        keys = [each.key for each in (*compares, *writes)]
        return await self._at(*keys).transact(compares, writes)

    async def add(self, key: str, amount: int) -> int:
        return await self._at(key).add(key, amount)

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        return await self._at(*keys).wait(keys, timeout)

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        async with aclosing(self._at(prefix).watch(prefix, after)) as events:
            async for event in events:
                yield event

    def move(self, store: Store) -> None:
        """Have all keys but those of its own in this store from now on."""
        self._store = store

    async def close(self) -> None:
        """Close the store of its own; the caller closes the other."""
        await self._own.close()
