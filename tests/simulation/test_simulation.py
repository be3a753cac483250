"""A short form of `run.py`: the production handlers under a seeded scheduler."""

from __future__ import annotations

import asyncio

import pytest
from simulation.job import RUN_ID, Job, Plan, play
from simulation.virtual_loop import VirtualLoop

from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import StopWanted


@pytest.mark.parametrize("agents", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_invariants_hold(agents: int, seed: int) -> None:
    result = play(Plan(seed=seed, agents=agents))
    assert not result.violation, "\n".join([*result.history, result.violation])


def test_without_faults_one_round_is_formed_and_ends_well() -> None:
    result = play(Plan(seed=1, agents=200, faults=0, seconds=1.0))
    assert not result.violation
    assert result.rounds == 0  # after the first


def test_a_run_can_be_had_again() -> None:
    assert play(Plan(seed=5, agents=5)).history == play(Plan(seed=5, agents=5)).history


class LeaderDiesAtOnce(Job):
    """As soon as the first round runs, or soon after."""

    took = 0.0
    """How many ttls passed until all others ran again."""

    async def _story(self) -> None:
        for _ in range(self._plan.agents):
            self._world.add()
        await self._until(self._all_run, 60, "the first round", step=0.002)
        await asyncio.sleep(self._chance.uniform(0, 0.4 * self._settings.ttl))
        died = self._loop.time()
        self._world.tell("--", self._faults.crash_leader(self._chance))
        await self._until(self._all_run, 150, "a round without it")
        self.took = (self._loop.time() - died) / self._settings.ttl


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_that_dies_before_anybody_knew_it_costs_few_ttls(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        job = LeaderDiesAtOnce(Plan(seed=seed, agents=5))
        result = runner.run(job.run())
    assert not result.violation
    assert job.took < 4


class LosesWorkers(Job):
    """Most of what happens is that nodes lose workers which are replaced while the others stay."""

    async def _befall(self) -> None:
        self._kinds += (self._faults.lose,) * (2 * len(self._kinds))
        await super()._befall()


@pytest.mark.parametrize("agents", [2, 4])
def test_lost_workers_are_replaced_once_all_others_have_left_the_round(agents: int) -> None:
    went_on = 0
    for seed in range(12):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            result = runner.run(LosesWorkers(Plan(seed=seed, agents=agents)).run())
        assert not result.violation, "\n".join([*result.history, result.violation])
        went_on += sum("goes on in round" in line for line in result.history)
    assert went_on > 10


class SlowToEnd(Job):
    """The job is stopped, and the workers need several ttls to write their checkpoints."""

    async def _story(self) -> None:
        for _ in range(self._plan.agents):
            self._world.add().slow_end = 3 * self._settings.ttl
        await self._until(self._all_run, 60, "the first round")
        wanted = rows.encode(StopWanted(code=143, reason="somebody asked for it"))
        self._world.server.put(rows.base(RUN_ID) + rows.WANT_STOP, wanted)
        await self._until(self._has_ended, 60, "the end")

    def all_ended_in_time(self) -> bool:
        ran = [agent for agent in self._world.agents.values() if agent.over]
        return all(agent.ended_in_time for agent in ran) and len(ran) == self._plan.agents


@pytest.mark.parametrize("seed", range(5))
def test_workers_have_the_time_they_need_to_end_after_a_verdict(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        job = SlowToEnd(Plan(seed=seed, agents=2))
        result = runner.run(job.run())
    assert not result.violation
    assert job.all_ended_in_time()
