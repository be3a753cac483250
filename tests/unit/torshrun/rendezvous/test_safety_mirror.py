"""Nothing that is heard late undoes what is known, and nothing is lost while it is listed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from torsh_runtime.store.base import Event, Listing
from torsh_runtime.store.memory import MemoryStore
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.settings import Settings
from torshrun.rendezvous.watch_cache import WatchCache

RULES = Settings(run_id="r", min_nodes=1, max_nodes=2, ttl=4)
KEY = rows.base("r") + "nodes/a"


class Gated(MemoryStore):
    """Its watch and the answers to its listings wait at gates."""

    def __init__(self) -> None:
        super().__init__()
        self.watch_gate, self.list_gate = asyncio.Event(), asyncio.Event()
        self.watch_gate.set()
        self.list_gate.set()

    async def list(self, prefix: str) -> Listing:
        listing = await super().list(prefix)
        await self.list_gate.wait()
        return listing

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        async with aclosing(super().watch(prefix, after)) as events:
            async for event in events:
                await self.watch_gate.wait()
                yield event


class Follower:
    """What a mirror has told of one key, at last."""

    def __init__(self, store: Gated) -> None:
        asking = Asking(store, RULES, time.monotonic, random.Random(1))
        self.told: list[bytes | None] = []
        self._heard = asyncio.Event()
        self.mirror = WatchCache(asking, rows.NODES, self._change)

    def _change(self, name: str, value: bytes | None, revision: int) -> None:
        self.told.append(value)
        self._heard.set()

    async def until(self, value: bytes) -> None:
        async with asyncio.timeout(20):
            while self.told[-1:] != [value]:
                self._heard.clear()
                await self._heard.wait()


async def following() -> tuple[Gated, Follower, asyncio.Task[None]]:
    """A mirror's that has heard what was written last, b"2"."""
    store = Gated()
    follower = Follower(store)
    await store.put(KEY, b"1")
    task = asyncio.create_task(follower.mirror.follow())
    await store.put(KEY, b"2")
    await follower.until(b"2")
    return store, follower, task


def test_a_watch_that_lags_behind_a_listing_undoes_nothing() -> None:
    async def scene() -> None:
        store, follower, task = await following()
        store.watch_gate.clear()
        await store.put(KEY, b"3")
        await store.put(KEY, b"4")
        await follower.mirror.refresh()
        del follower.told[:]
        store.watch_gate.set()
        await store.put(KEY, b"5")
        await follower.until(b"5")
        assert follower.told == [b"5"]
        await stop(task, store)

    asyncio.run(scene())


def test_what_is_heard_while_it_lists_is_newer_than_the_list() -> None:
    async def scene() -> None:
        store, follower, task = await following()
        store.list_gate.clear()
        listing = asyncio.create_task(follower.mirror.refresh())
        await asyncio.sleep(0)  # it is on its way, and what follows is not in it
        await store.put(KEY, b"3")
        await follower.until(b"3")
        store.list_gate.set()
        await listing
        assert follower.told[-1] == b"3"
        await stop(task, store)

    asyncio.run(scene())


def test_what_a_listing_lacks_is_gone() -> None:
    async def scene() -> None:
        store = Gated()
        follower = Follower(store)
        await store.put(KEY, b"1")
        task = asyncio.create_task(follower.mirror.follow())
        await follower.until(b"1")
        store.watch_gate.clear()
        await store.delete(KEY)
        await follower.mirror.refresh()
        assert follower.told == [b"1", None]
        await stop(task, store)

    asyncio.run(scene())


async def stop(task: asyncio.Task[None], store: Gated) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.close()
