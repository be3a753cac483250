"""A round's store of which some keys are an agent's own."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Delete, Put
from torsh_runtime.store.memory import MemoryStore
from torshrun.rendezvous.own_keys import StoreWithOwnKeys


def test_keys_of_the_prefix_are_in_the_store_of_its_own() -> None:
    async def run() -> None:
        common, own = MemoryStore(), MemoryStore()
        store, other = (StoreWithOwnKeys(common, "own/", each) for each in (own, MemoryStore()))
        await store.put("own/a", b"1")
        await store.put("b", b"2")
        assert await store.add("own/n", 2) == 2
        assert (await store.get("own/a"), await common.get("own/a")) == (
            await own.get("own/a"),
            None,
        )
        assert await other.get("own/a") is None
        assert (await other.wait(["b"], 1))["b"].value == b"2"
        assert [entry.key for entry in (await store.list("own/")).items] == ["own/a", "own/n"]
        assert [entry.key for entry in (await store.list("")).items] == ["b"]
        async with aclosing(store.watch("own/", 0)) as events:
            assert (await anext(events)).key == "own/a"
        assert (await store.transact([Compare("own/c", 0)], [Delete("own/a")])).succeeded
        assert await own.get("own/a") is None
        assert await store.delete("b")
        await store.close()
        assert (await common.list("")).items == ()  # which is still open
        await common.close()

    asyncio.run(run())


def test_a_request_for_keys_of_both_stores_is_refused() -> None:
    async def run() -> None:
        store = StoreWithOwnKeys(MemoryStore(), "own/", MemoryStore())
        with pytest.raises(StoreError, match="different stores"):
            await store.transact([], [Put("own/a", b""), Put("b", b"")])
        with pytest.raises(StoreError, match="different stores"):
            await store.wait(["own/a", "b"], 1)

    asyncio.run(run())
