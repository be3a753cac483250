"""The store loses what it held: all that live train again soon."""

from __future__ import annotations

import asyncio
import random

import pytest
from simulation.job import STANDS_ALL_FAULTS, Job, Plan, Result
from simulation.store_faults import StoreFaults
from simulation.virtual_loop import VirtualLoop

pytestmark = pytest.mark.skipif(not STANDS_ALL_FAULTS, reason="these faults are not stood yet")


def play(job: Job) -> Result:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(job.run())


class Lost(Job):
    """One fault, in a job that runs well, and all agents live."""

    seconds = 5.0

    async def _story(self) -> None:
        for _ in range(self._plan.agents):
            self._world.add()
        await self._until(self._all_run, 60, "the first round")
        await asyncio.sleep(self._chance.uniform(0, 2 * self._settings.ttl))
        await self._strike(StoreFaults(self._world), self._chance)
        seconds = 2 * self._settings.ttl + self.seconds
        await self._until(self._all_run, seconds, "a round after the loss")
        self._end()
        await self._until(self._has_ended, 60, "the end")

    async def _strike(self, faults: StoreFaults, chance: random.Random) -> None:
        raise NotImplementedError


class Wiped(Lost):
    async def _strike(self, faults: StoreFaults, chance: random.Random) -> None:
        self._world.tell("--", faults.wipe(chance))


class Restored(Lost):
    """With or without rounds since the snapshot."""

    async def _strike(self, faults: StoreFaults, chance: random.Random) -> None:
        snapshot = self._world.server.snapshot()
        for _ in range(chance.choice((0, 1, 2))):
            chance.choice(self._world.running()).fail()
            await asyncio.sleep(6)
        await self._until(self._all_run, 60, "a round since the snapshot")
        before = self._world.server.state.revision
        self._world.server.restore(snapshot)
        if chance.random() < 0.5:
            self._world.server.write_as_others(before + 50)
        self._world.tell("--", "the store is as it was")


class HostRestarted(Lost):
    async def _strike(self, faults: StoreFaults, chance: random.Random) -> None:
        self._world.tell("--", faults.restart_host(chance))
        await asyncio.sleep(self._settings.ttl)


@pytest.mark.parametrize("kind", [Wiped, Restored, HostRestarted])
@pytest.mark.parametrize("seed", range(20))
def test_all_that_live_train_again_soon(kind: type[Job], seed: int) -> None:
    result = play(kind(Plan(seed=seed, agents=2 + seed % 4)))
    assert not result.violation, "\n".join([*result.history, result.violation])
