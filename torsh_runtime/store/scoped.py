"""A part of a store, as if it were one of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

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
        return self._scope.optional(await self._store.get(self._scope.key(key)))

    async def list(self, prefix: str) -> Listing:
        return self._scope.listing(await self._store.list(self._scope.prefix + prefix))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return await self._store.put(self._scope.key(key), value, lease)

    async def delete(self, key: str) -> bool:
        return await self._store.delete(self._scope.key(key))

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        scope = self._scope
        return await self._store.transact(
            [*map(scope.compare, compares)], [*map(scope.write, writes)]
        )

    async def add(self, key: str, amount: int) -> int:
        return await self._store.add(self._scope.key(key), amount)

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        names = [*map(self._scope.key, keys)]
        return self._scope.found(await self._store.wait(names, timeout))

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        async with aclosing(self._store.watch(self._scope.prefix + prefix, after)) as events:
            async for event in events:
                yield self._scope.event(event)
