"""The dead-man timer, with the compiled keeper: who does not come back has no workers."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from torshrun.agent.watchdog import Watchdog
from torshrun.workers.group import WorkerGroup
from torshrun.workers.keeper import DeadManFired, Exited, Keeper, Report, Spawned


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    started = Keeper.start()
    yield started
    started.close(10)


def group_of(loop: asyncio.AbstractEventLoop, keeper: Keeper) -> WorkerGroup:
    """All that the timer needs of one."""
    return cast(WorkerGroup, SimpleNamespace(loop=loop, keeper=keeper))


def until(keeper: Keeper, *kinds: type[Report]) -> None:
    """Wait until the keeper has reported these, of which some may come at once."""
    deadline, reports = time.monotonic() + 20, list[Report]()
    while not set(kinds) <= set(map(type, reports)):
        assert time.monotonic() < deadline, reports
        waiting = [] if keeper.flush() else [keeper]
        select.select([keeper], waiting, [], 0.1)
        reports += keeper.receive()


@pytest.mark.parametrize("granted", [None, 3600.0])
def test_workers_of_an_agent_whose_loop_stands_still_end(
    keeper: Keeper, granted: float | None
) -> None:
    keeper.spawn(1, ["/bin/sleep", "600"], {}, "", (0, 1, 2))
    until(keeper, Spawned)
    loop = asyncio.new_event_loop()
    timer = Watchdog(group_of(loop, keeper), 0.2, lambda: None)
    if granted:
        timer.grant(time.monotonic() + granted)
    timer.renew()  # and the loop never runs
    until(keeper, DeadManFired, Exited)
    timer.stop()
    loop.close()


def test_workers_end_with_what_was_granted(keeper: Keeper) -> None:
    keeper.spawn(1, ["/bin/sleep", "600"], {}, "", (0, 1, 2))
    until(keeper, Spawned)
    loop = asyncio.new_event_loop()
    timer = Watchdog(group_of(loop, keeper), 0.0, lambda: None)
    timer.renew()
    timer.grant(time.monotonic() + 0.2)
    until(keeper, DeadManFired)
    assert timer.expired
    timer.stop()
    loop.close()
