"""An agent that crashes soon after each start, and whose host starts it again and again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from simulation.job import Job, Plan
from simulation.virtual_loop import VirtualLoop

from torshrun.rendezvous.restart import MOST_LOSSES


class CrashLoop(Job):
    """Beside three agents that run."""

    least = 2

    async def _story(self) -> None:
        self._world.settings = self._settings = replace(
            self._settings, min_nodes=self.least, max_nodes=4, max_restarts=0
        )
        self._world.oracles.record.limits.add((self.least, 4))
        steady = [self._world.add() for _ in range(3)]
        await self._until(lambda: all(agent.place for agent in steady), 90, "the first round")
        for _ in range(80):
            agent = self._world.add("odd")
            await asyncio.sleep(2.0)
            self._world.crash(agent)
            await asyncio.sleep(1.0)
        await self._until(lambda: all(agent.place for agent in steady), 90, "a round without it")


@pytest.mark.parametrize("seed", range(6))
def test_an_agent_in_a_crash_loop_does_not_restart_the_others_for_ever(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        job = CrashLoop(Plan(seed=seed, agents=4))
        result = runner.run(job.run())
    assert not result.violation, "\n".join([*result.history, result.violation])
    assert result.rounds <= 2 * MOST_LOSSES, "a round that it joins, and one when it is lost"


class Needed(CrashLoop):
    """Without it there are too few."""

    least = 4

    async def _story(self) -> None:
        self._world.settings = self._settings = replace(
            self._settings, min_nodes=4, max_nodes=4, max_restarts=0
        )
        self._world.oracles.record.limits.add((4, 4))
        for _ in range(3):
            self._world.add()
        for _ in range(MOST_LOSSES + 2):
            agent = self._world.add("odd")
            await self._until(self._all_run, 120, "a round with it")
            await asyncio.sleep(1.0)
            self._world.crash(agent)
        self._world.add("odd")
        await self._until(self._all_run, 120, "a round with the one that lasts")


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_the_job_needs_is_let_in_however_often_its_host_was_lost(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(Needed(Plan(seed=seed, agents=4)).run())
    assert not result.violation, "\n".join([*result.history, result.violation])
