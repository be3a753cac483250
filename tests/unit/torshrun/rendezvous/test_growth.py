"""How what workers tell of their checkpoints becomes a key that holds the job's growth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from torsh_runtime.contract import CHECKPOINT_KEY
from torsh_runtime.store.memory import MemoryStore
from torshrun.rendezvous.growth import Growth

KEY = "torsh/job/want/hold/a"


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(30):
            await scene

    asyncio.run(guarded())


@asynccontextmanager
async def opened(
    ttl: float = 20.0,
) -> AsyncGenerator[tuple[MemoryStore, MemoryStore, Growth], None]:
    """The store where nodes meet, the round's, and what follows that."""
    meeting, in_round = MemoryStore(), MemoryStore()
    growth = Growth(meeting, KEY, ttl)
    growth.follow(in_round)
    yield meeting, in_round, growth
    await growth.close()
    await meeting.close()
    await in_round.close()


async def until_gone(store: MemoryStore) -> None:
    listing = await store.list(KEY)
    if listing.items:
        async for event in store.watch(KEY, listing.revision):
            if event.kind == "delete":
                return


def test_a_round_that_tells_nothing_holds_nothing() -> None:
    async def scene() -> None:
        async with opened() as (meeting, _, _):
            await asyncio.sleep(0.05)
            assert (await meeting.list("")).revision == 0

    play(scene())


def test_growth_is_held_but_for_the_time_after_a_checkpoint() -> None:
    async def scene() -> None:
        async with opened() as (meeting, in_round, _):
            await in_round.put(CHECKPOINT_KEY, b"0.01")
            (entry,) = (await meeting.wait([KEY], 20)).values()
            assert entry.lease
            await in_round.put(CHECKPOINT_KEY, b"600")
            await until_gone(meeting)

    play(scene())


@pytest.mark.parametrize("end", [Growth.unfollow, Growth.close])
def test_the_rounds_end_lets_go(end: Callable[[Growth], Any]) -> None:
    async def scene() -> None:
        async with opened() as (meeting, in_round, growth):
            await in_round.put(CHECKPOINT_KEY, b"0")
            await meeting.wait([KEY], 20)
            ending = end(growth)
            if ending is not None:
                await ending
            await until_gone(meeting)

    play(scene())


@pytest.mark.parametrize("value", [b"", b"soon", b"-1", b"nan", b"inf", b"\xff"])
def test_what_is_no_time_is_not_for_us(value: bytes) -> None:
    async def scene() -> None:
        async with opened() as (meeting, in_round, _):
            await in_round.put(CHECKPOINT_KEY, value)
            await asyncio.sleep(0.05)
            assert (await meeting.list("")).revision == 0

    play(scene())


def test_a_key_that_was_lost_is_written_again() -> None:
    async def scene() -> None:
        async with opened(ttl=0.4) as (meeting, in_round, _):
            await in_round.put(CHECKPOINT_KEY, b"0")
            (entry,) = (await meeting.wait([KEY], 20)).values()
            await meeting.revoke(entry.lease)
            (again,) = (await meeting.wait([KEY], 20)).values()
            assert again.lease != entry.lease

    play(scene())
