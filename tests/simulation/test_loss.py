"""The store loses what it held: all that live train again soon."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from simulation.ambushes import Ambushes
from simulation.job import Job, Plan, Result
from simulation.record import check
from simulation.store_faults import StoreFaults
from simulation.virtual_loop import VirtualLoop


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


class PutBack(Job):
    """A job has ended; then somebody who does not know the secret puts all that it wrote back, and
    the next job of that name, with the same secret, begins.
    """

    lease = 0.0
    """How long the rows last that were on leases, in ttls."""

    async def _story(self) -> None:
        world = self._world
        for _ in range(self._plan.agents):
            world.add()
        await self._until(self._all_run, 60, "the first round")
        recorded = [world.server.snapshot()]
        await asyncio.sleep(self._chance.uniform(0, self._settings.ttl))
        self._end()
        await self._until(self._has_ended, 60, "the end")
        recorded.append(world.server.snapshot())  # with its verdict
        await asyncio.sleep(2 * self._settings.verdict_ttl)
        world.is_finishing = False
        world.server.put_back(recorded[self._had_verdict()], self.lease * self._settings.ttl)
        world.tell("--", "the rows of the last job are put back")
        for _ in range(self._plan.agents):
            world.add()
        await self._go_on()

    def _had_verdict(self) -> bool:
        return self._chance.random() < 0.5

    async def _go_on(self) -> None:
        raise NotImplementedError


class PutBackForAWhile(PutBack):
    lease = 1.0

    async def _go_on(self) -> None:
        seconds = self._settings.outage_timeout + 4 * self._settings.ttl
        await self._until(self._all_run, seconds + 20, "a round of the next job")
        self._end()
        await self._until(self._has_ended, 60, "its end")


class PutBackForGood(PutBack):
    """Who leads, and so does not live, never answers."""

    lease = 1e6

    def _had_verdict(self) -> bool:
        return False

    async def _go_on(self) -> None:
        self._world.oracles.record.expired.update(self._world.agents)  # with who leads
        await self._until(self._is_over, self._settings.join_timeout + 20, "an end with a reason")
        ends = [agent.over.verdict for agent in self._world.agents.values() if agent.over]
        last = ends[-self._plan.agents :]
        for verdict in last:
            check("has not answered" in verdict.reason, verdict.reason)


@pytest.mark.parametrize("kind", [PutBackForAWhile, PutBackForGood])
@pytest.mark.parametrize("seed", range(20))
def test_what_an_earlier_job_wrote_leads_the_next_one_nowhere(kind: type[Job], seed: int) -> None:
    result = play(kind(Plan(seed=seed, agents=2 + seed % 4)))
    assert not result.violation, "\n".join([*result.history, result.violation])


class NeverEnters(Job):
    """One node lives and cannot read its place: the others do without it, once and for all."""

    async def _story(self) -> None:
        rules = self._settings
        least = min(rules.min_nodes, self._plan.agents - 1)
        self._world.settings = self._settings = replace(rules, min_nodes=least)
        self._world.oracles.record.limits.add((least, rules.max_nodes))
        for _ in range(self._plan.agents):
            self._world.add()
        await self._until(self._all_run, 60, "the first round")
        ambushes = Ambushes(self._world, self._faults)
        self._world.tell("--", ambushes.never_enters(self._chance, 1e9))
        await asyncio.sleep(1)
        await self._until(self._others_run, self._recovery(), "a round without that node")
        rounds = self._world.oracles.rounds.count
        await asyncio.sleep(60)
        check(self._world.oracles.rounds.count == rounds, "the others are left in peace")

    def _others_run(self) -> bool:
        world, header = self._world, self._world.oracles.record.header
        count = len(world.running())
        enough = count >= min(len(world.present()) - 1, self._settings.max_nodes)
        return enough and header is not None and header.size == count


@pytest.mark.parametrize("kind", [Wiped, Restored, HostRestarted, NeverEnters])
@pytest.mark.parametrize("seed", range(20))
def test_all_that_live_train_again_soon(kind: type[Job], seed: int) -> None:
    result = play(kind(Plan(seed=seed, agents=2 + seed % 4)))
    assert not result.violation, "\n".join([*result.history, result.violation])
