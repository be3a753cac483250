"""How what workers tell of their checkpoints holds the job's growth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from torsh_runtime.contract import CHECKPOINT_KEY
from torsh_runtime.store.memory import MemoryStore
from torshrun.rendezvous.growth import Growth


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(30):
            await scene

    asyncio.run(guarded())


class Job:
    """Is told whether its growth is held, and remembers each change."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        self._changed = asyncio.Event()

    def hold(self, is_held: bool) -> None:
        if self.told[-1:] != [is_held]:
            self.told.append(is_held)
            self._changed.set()

    async def until(self, *told: bool) -> None:
        while self.told != [*told]:
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def opened() -> AsyncGenerator[tuple[Job, MemoryStore, Growth], None]:
    """The job, the round's store, and what follows that."""
    job, in_round = Job(), MemoryStore()
    growth = Growth(job.hold)
    growth.follow(in_round)
    yield job, in_round, growth
    growth.unfollow()
    await in_round.close()


def test_a_round_that_tells_nothing_holds_nothing() -> None:
    async def scene() -> None:
        async with opened() as (job, _, _):
            await asyncio.sleep(0.05)
            assert job.told == []

    play(scene())


def test_growth_is_held_but_for_the_time_after_a_checkpoint() -> None:
    async def scene() -> None:
        async with opened() as (job, in_round, _):
            await in_round.put(CHECKPOINT_KEY, b"0.01")
            await job.until(False, True)
            await in_round.put(CHECKPOINT_KEY, b"600")
            await job.until(False, True, False)

    play(scene())


def test_the_rounds_end_lets_go() -> None:
    async def scene() -> None:
        async with opened() as (job, in_round, growth):
            await in_round.put(CHECKPOINT_KEY, b"0")
            await job.until(False, True)
            growth.unfollow()
            assert job.told == [False, True, False]
            await in_round.put(CHECKPOINT_KEY, b"0")
            await asyncio.sleep(0.05)
            assert job.told == [False, True, False]

    play(scene())


@pytest.mark.parametrize("value", [b"", b"soon", b"-1", b"nan", b"inf", b"\xff"])
def test_what_is_no_time_is_not_for_us(value: bytes) -> None:
    async def scene() -> None:
        async with opened() as (job, in_round, _):
            await in_round.put(CHECKPOINT_KEY, value)
            await asyncio.sleep(0.05)
            assert job.told == []

    play(scene())
