"""What is told of clients that were turned away."""

from __future__ import annotations

import asyncio

from torsh_runtime.store.refusals import MAX_REASONS, Refusals


def test_each_reason_is_told_at_once_and_then_counted() -> None:
    async def scene() -> None:
        told: list[str] = []
        refusals = Refusals(told.append, 3600.0)
        for _ in range(3):
            refusals.note("uid 7")
        refusals.note("wrong secret")
        assert told == ["uid 7", "wrong secret"]
        refusals.close()
        assert told[2:] == ["uid 7 … and 2 more"]

    asyncio.run(scene())


def test_the_count_is_told_while_a_flood_lasts() -> None:
    async def scene() -> None:
        told: asyncio.Queue[str] = asyncio.Queue()
        refusals = Refusals(told.put_nowait, 0.01)
        refusals.note("uid 7")
        refusals.note("uid 7")
        assert [await told.get(), await told.get()] == ["uid 7", "uid 7 … and 1 more"]
        refusals.note("uid 7")
        assert await told.get() == "uid 7 … and 1 more"
        refusals.close()

    asyncio.run(scene())


def test_reasons_of_somebodys_choice_are_bounded() -> None:
    async def scene() -> None:
        told: list[str] = []
        refusals = Refusals(told.append, 3600.0)
        for number in range(1000):
            refusals.note(f"reason {number}")
        assert len(told) == MAX_REASONS + 1
        refusals.close()
        assert told[-1].endswith(f"… and {1000 - MAX_REASONS - 1} more")

    asyncio.run(scene())
