"""A virtual job: agents, a store and a network, and a seeded run of what befalls them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from simulation.ambushes import Ambushes
from simulation.faults import Faults
from simulation.record import Violation
from simulation.store_faults import StoreFaults
from simulation.virtual_loop import VirtualLoop
from simulation.world import World

from torshrun.rendezvous import mending, rows
from torshrun.rendezvous.rows import StopWanted
from torshrun.rendezvous.settings import Settings

RUN_ID = "virtual"
COMMIT_WITHIN = 10.0
"""Virtual seconds in which workers commit, or leave their step."""


@dataclass(frozen=True)
class Plan:
    """How a run is to be."""

    seed: int
    agents: int
    faults: int = 30
    """At most how many faults happen."""
    seconds: float = 90.0
    """How long faults happen."""
    only: frozenset[int] | None = None
    """The faults to let happen, by number; None is all."""


@dataclass
class Result:
    """What became of a run."""

    violation: str
    history: list[str]
    rounds: int
    requests: int
    """Of the busiest agent, until the first round."""
    happened: list[int]
    """The numbers of the faults that had an effect."""


def play(plan: Plan) -> Result:
    """Let one run happen. It is over before a commit would be given up that does not come."""
    mending.COMMIT_WITHIN = COMMIT_WITHIN
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(Job(plan).run())


class Job:
    """One run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        most = max(2, plan.agents - self._chance.choice((0, 0, 2)))
        least = self._chance.choice((1, 2, max(1, plan.agents // 2)))
        self._settings = Settings(
            run_id=RUN_ID,
            min_nodes=min(least, most),
            max_nodes=most,
            max_restarts=self._chance.choice((3, 1000)),
            restart_backoff=self._chance.choice((0.0, 0.5)),
            ttl=self._chance.choice((4.0, 10.0)) if plan.agents <= 1000 else 15.0,
            join_timeout=300.0,
            last_call_timeout=self._chance.choice((0.5, 5.0)),
            outage_timeout=30.0,
        )
        self._happened: list[int] = []
        self._requests = 0

    async def run(self) -> Result:
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._loop.set_exception_handler(self._on_exception)
        self._world = World(self._settings, self._chance)
        self._faults = Faults(self._world)
        ambushes, store = Ambushes(self._world, self._faults), StoreFaults(self._world)
        self._kinds = (*self._faults.all, *ambushes.all, *store.all)
        story = self._loop.create_task(self._story())
        await asyncio.wait([story, self._failure], return_when=asyncio.FIRST_COMPLETED)
        violation = self._violation(story)
        history = [*self._world.history]
        story.cancel()
        self._world.close()
        await asyncio.sleep(0)
        return Result(
            violation,
            history,
            self._world.oracles.rounds.count,
            self._requests,
            self._happened,
        )

    def _violation(self, story: asyncio.Task[None]) -> str:
        for future in (self._failure, story):
            if future.done() and (error := future.exception()):
                return f"{type(error).__name__}: {error}"
        return ""

    def _on_exception(self, loop: asyncio.AbstractEventLoop, facts: dict[str, object]) -> None:
        error = facts.get("exception")
        if isinstance(error, Exception) and not self._failure.done():
            self._failure.set_exception(error)

    # ---- the story

    async def _story(self) -> None:
        for _ in range(self._plan.agents):
            self._world.add()
        await self._until(self._all_run, 60 + mending.JOIN_WITHIN, "the first round")
        self._requests = max(self._world.server.requests.values(), default=0)
        await self._befall()
        self._world.heal()
        await self._until(self._all_run, self._recovery(), "a round after the faults")
        if len(self._world.present()) >= self._settings.min_nodes:
            self._end()
            await self._until(self._has_ended, 60, "the end")

    def _recovery(self) -> float:
        """Seconds after the last fault in which all that are there run again: a round that some of
        its nodes cannot be asked about ends with the longest outage, and nodes that were given up
        for lost, or come late, cost one more round, which waits for workers that never join.
        """
        rules = self._settings
        least = rules.outage_timeout + 4 * rules.ttl + 2 * rules.last_call_timeout + 20
        return least + mending.JOIN_WITHIN

    def _end(self) -> None:
        """All workers succeed, or somebody asks for the end."""
        if self._chance.random() < 0.2:
            self._world.tell("--", "the job is to stop")
            wanted = rows.encode(StopWanted(code=143, reason="somebody asked for it"))
            self._world.server.put(rows.base(RUN_ID) + rows.WANT_STOP, wanted)
        else:
            self._world.is_finishing = True
            for agent in self._world.present():
                agent.finish()

    def _all_run(self) -> bool:
        """As many as may run workers, in one round."""
        present, running = self._world.present(), self._world.running()
        if self._is_over():
            return True
        if len(present) < self._settings.min_nodes:
            return not running
        record = self._world.oracles.record
        rounds = {record.running[agent.name] for agent in running}
        known = rounds == record.rounds_running()
        full = len(running) == min(len(present), self._settings.max_nodes)
        return full and known and len(rounds) == 1

    def _is_over(self) -> bool:
        return not self._world.present()

    def _has_ended(self) -> bool:
        """Whether all have, but those who came when it was over, and are too few for another."""
        return not self._world.running() and len(self._world.present()) < self._settings.min_nodes

    async def _until(
        self, holds: Callable[[], bool], seconds: float, what: str, step: float = 0.5
    ) -> None:
        deadline = self._loop.time() + seconds
        while not holds():
            if self._loop.time() > deadline:
                present, running = len(self._world.present()), len(self._world.running())
                raise Violation(
                    f"{what} did not come within {seconds} s: {running} of {present} run; "
                    f"header {self._world.oracles.record.header}"
                )
            await asyncio.sleep(step)

    # ---- what befalls it

    async def _befall(self) -> None:
        plan = self._plan
        number = self._chance.randint(min(3, plan.faults), plan.faults)
        moments = sorted(self._chance.uniform(0, plan.seconds) for _ in range(number))
        begun = self._loop.time()
        for number, moment in enumerate(moments):
            fault = self._chance.choice(self._kinds)
            chance = random.Random(self._chance.random())
            await asyncio.sleep(max(0.0, begun + moment - self._loop.time()))
            if plan.only is None or number in plan.only:
                what = fault(chance)
                if what:
                    self._happened.append(number)
                    self._world.tell(f"[{number}]", what)
