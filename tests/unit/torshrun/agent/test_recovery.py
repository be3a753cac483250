"""How long workers have to leave a round in which others were lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from torsh_runtime.contract import PARKED, RECOVERY
from torsh_runtime.store.memory import MemoryStore
from torshrun.agent import protocol, recovery
from torshrun.agent.recovery import Recovery


async def waits(*keys: str, is_alone: bool = False, is_before: bool = False) -> list[Any]:
    """What is posted within a moment after round 1 is over and these keys were written."""
    posted: list[Any] = []
    store, group = MemoryStore(), SimpleNamespace(workers=[])
    loop = asyncio.get_running_loop()
    each = Recovery(loop, group, posted.append, print, print)  # type: ignore[arg-type]
    each.start(store, None if is_alone else 3.0)
    await asyncio.sleep(0.01)
    for moment in (True, False):
        if moment is is_before:
            for key in keys:
                await store.put(key, b"0.01")
        else:
            await each.end_round(1, at_commit=False)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    each.stop()
    return posted


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PARK_LEAST", 0.05)


@pytest.mark.parametrize("is_before", [False, True])
def test_steps_of_another_nodes_worker_bound_those_of_the_only_one_here(is_before: bool) -> None:
    posted = asyncio.run(waits(f"{PARKED}1", is_before=is_before))
    assert posted == [protocol.ParkingOver(1)]


def test_steps_of_another_round_bound_nothing() -> None:
    assert asyncio.run(waits(f"{PARKED}0")) == []


def test_the_first_that_leaves_tells_other_nodes() -> None:
    async def tells() -> list[Any]:
        store, group = MemoryStore(), SimpleNamespace(workers=[])
        each = Recovery(asyncio.get_running_loop(), group, print, print, print)  # type: ignore[arg-type]
        each.start(store, 3.0)
        await asyncio.sleep(0.01)
        await each.end_round(1, at_commit=False)
        await store.put(f"{RECOVERY}parked/1/0", b"2.5")
        await store.put(f"{RECOVERY}parked/1/2", b"9.5")
        await asyncio.sleep(0.05)
        each.stop()
        return [(item.key, item.value) for item in (await store.list(PARKED)).items]

    assert asyncio.run(tells()) == [(f"{PARKED}1", b"2.5")]


@pytest.mark.parametrize(("ttl", "seconds"), [(None, 10.0), (3.0, 60.0), (100.0, 400.0)])
def test_workers_wait_for_the_news_of_a_loss_as_long_as_a_node_may_take_to_be_lost(
    ttl: float | None, seconds: float
) -> None:
    async def tells() -> float:
        store, group = MemoryStore(), SimpleNamespace(workers=[])
        each = Recovery(asyncio.get_running_loop(), group, print, print, print)  # type: ignore[arg-type]
        each.start(store, ttl)
        told = await store.wait([f"{RECOVERY}notice"], 5.0)
        each.stop()
        return float(told[f"{RECOVERY}notice"].value)

    assert asyncio.run(tells()) == seconds


def test_workers_that_are_to_commit_have_no_time_to_park_until_they_are_hurried() -> None:
    async def waits_and_hurries() -> list[list[Any]]:
        posted: list[Any] = []
        store, group = MemoryStore(), SimpleNamespace(workers=[])
        loop = asyncio.get_running_loop()
        each = Recovery(loop, group, posted.append, print, print)  # type: ignore[arg-type]
        each.start(store, 3.0)
        await asyncio.sleep(0.01)
        await each.end_round(1, at_commit=True)
        await store.put(f"{PARKED}1", b"0.01")
        await asyncio.sleep(0.3)
        before = [*posted]
        await each.end_round(1, at_commit=False)
        await asyncio.sleep(0.3)
        keys = [item.key.removeprefix(RECOVERY) for item in (await store.list(RECOVERY)).items]
        each.stop()
        return [before, posted, keys]

    before, after, keys = asyncio.run(waits_and_hurries())
    assert before == []
    assert after == [protocol.ParkingOver(1)]
    assert keys == ["notice", "now/1", "over/1"]
