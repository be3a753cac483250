"""MemoryStore's own ways: the injected clock, and waits that leave nothing registered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.memory import MemoryStore

GUARD = 60.0


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(GUARD):
            await work

    asyncio.run(guarded())


def test_leases_follow_the_injected_clock() -> None:
    async def body() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        lease = await store.grant(10.0)
        await store.put("a", b"", lease)
        clock.now += 9.0
        await store.keep_alive(lease)
        clock.now += 9.0
        assert await store.get("a") is not None
        clock.now += 1.0
        assert await store.get("a") is None
        with pytest.raises(StoreError):
            await store.keep_alive(lease)
        await store.close()

    run(body())


def test_a_renewed_lease_outlives_its_first_timer() -> None:
    async def body() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        lease = await store.grant(0.01)
        await store.put("a", b"", lease)
        await asyncio.sleep(0.05)  # the loop's timer fires while the injected clock stands still
        assert await store.get("a") is not None
        clock.now += 1.0
        await store.wait([], 0)
        async with aclosing(store.watch("a", 1)) as events:
            assert (await anext(events)).kind == "delete"
        await store.close()

    run(body())


def test_ended_waits_and_watches_leave_nothing_registered() -> None:
    async def body() -> None:
        store = MemoryStore()
        with pytest.raises(StoreTimeout):
            await store.wait(["a", "b"], 0.01)
        wait = asyncio.create_task(store.wait(["a"], GUARD))

        async def first_event() -> None:
            async with aclosing(store.watch("w/", 0)) as events:
                await anext(events)

        watch = asyncio.create_task(first_event())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (len(store._arrivals), len(store._watchers)) == (1, 1)
        wait.cancel()
        watch.cancel()
        await asyncio.wait([wait, watch])
        assert (len(store._arrivals), len(store._watchers)) == (0, 0)
        await store.close()

    run(body())


def test_a_key_deleted_before_the_wait_looks_again_is_waited_for() -> None:
    async def body() -> None:
        store = MemoryStore()
        wait = asyncio.create_task(store.wait(["a"], GUARD))
        await asyncio.sleep(0)
        await store.put("a", b"1")
        await store.delete("a")
        await asyncio.sleep(0)
        assert not wait.done()
        await store.put("a", b"2")
        assert (await wait)["a"].value == b"2"
        await store.close()

    run(body())


def test_a_quiet_watch_survives_a_busy_store() -> None:
    async def body() -> None:
        store = MemoryStore()
        events = store.watch("quiet/", 0)
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        for _ in range(40_000):  # more than the history holds
            await store.put("busy", b"")
        await store.put("quiet/a", b"1")
        assert (await following).key == "quiet/a"
        await events.aclose()
        await store.close()

    run(body())
