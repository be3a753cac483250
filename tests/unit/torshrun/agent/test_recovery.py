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
    each = Recovery(loop, group, posted.append, print)  # type: ignore[arg-type]
    each.start(store, is_alone=is_alone)
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
        each = Recovery(asyncio.get_running_loop(), group, print, print)  # type: ignore[arg-type]
        each.start(store, is_alone=False)
        await asyncio.sleep(0.01)
        await each.end_round(1, at_commit=False)
        await store.put(f"{RECOVERY}parked/1/0", b"2.5")
        await store.put(f"{RECOVERY}parked/1/2", b"9.5")
        await asyncio.sleep(0.05)
        each.stop()
        return [(item.key, item.value) for item in (await store.list(PARKED)).items]

    assert asyncio.run(tells()) == [(f"{PARKED}1", b"2.5")]
