"""A part of a store, as if it were one of its own."""

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
from torsh_runtime.store.prefix import Scope


class ScopedStore(StoreView):
    """The keys of another store that begin with a prefix, which no result shows. Revisions are the
    other store's.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__(store)
        self._scope = Scope(prefix)

    async def get(self, key: str) -> Entry | None:
        entry = await self._store.get(self._key(key))
        return self._scope.entry(entry) if entry else None

    async def list(self, prefix: str) -> Listing:
        items, revision = await self._store.list(self._scope.prefix + prefix)
        return Listing(tuple(map(self._scope.entry, items)), revision)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return await self._store.put(self._key(key), value, lease)

    async def delete(self, key: str) -> bool:
        return await self._store.delete(self._key(key))

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        for item in (*compares, *writes):
            self._key(item.key)
        return await self._store.transact(
            [self._scope.compare(compare) for compare in compares],
            [self._scope.write(write) for write in writes],
        )

    async def add(self, key: str, amount: int) -> int:
        return await self._store.add(self._key(key), amount)

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        found = await self._store.wait([self._key(key) for key in keys], timeout)
        return {entry.key: entry for entry in map(self._scope.entry, found.values())}

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        async with aclosing(self._store.watch(self._scope.prefix + prefix, after)) as events:
            async for event in events:
                yield self._scope.event(event)

    def _key(self, key: str) -> str:
        if not key:
            raise StoreError("a key must be a non-empty string")
        return self._scope.prefix + key
