"""A virtual job: agents, a store and a network, and a seeded run of what befalls them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from simulation.invariants import Invariants, Violation
from simulation.network import STORE, Network
from simulation.virtual_agent import VirtualAgent
from simulation.virtual_beats import VirtualBeats
from simulation.virtual_loop import VirtualLoop
from simulation.virtual_store import Server

from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import StopWanted
from torshrun.rendezvous.settings import Settings

RUN_ID = "virtual"


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
    """Let one run happen."""
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
        self._history: list[str] = []
        self._invariants = Invariants(self._settings.min_nodes, self._settings.max_nodes)
        self._network = Network(random.Random(self._chance.random()))
        self._agents: dict[str, VirtualAgent] = {}
        self._ends: dict[str, VirtualBeats] = {}
        self._happened: list[int] = []
        self._is_healed = False
        self._requests = 0

    async def run(self) -> Result:
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._loop.set_exception_handler(self._on_exception)
        self._server = Server(self._network, self._invariants.on_event)
        story = self._loop.create_task(self._story())
        await asyncio.wait([story, self._failure], return_when=asyncio.FIRST_COMPLETED)
        violation = self._violation(story)
        story.cancel()
        for agent in self._agents.values():
            agent.crash()
        self._server.close()
        await asyncio.sleep(0)
        return Result(
            violation, self._history, self._invariants.rounds, self._requests, self._happened
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

    def tell(self, who: str, what: str) -> None:
        self._history.append(f"{self._loop.time():8.3f}  {who} {what}")

    # ---- the story

    async def _story(self) -> None:
        for _ in range(self._plan.agents):
            self._add()
        await self._until(self._all_run, 60, "the first round")
        self._requests = max(self._server.requests.values(), default=0)
        await self._befall()
        self._heal()
        await self._until(self._all_run, 150, "a round after the faults")
        if len(self._present()) >= self._settings.min_nodes:
            self._end()
            await self._until(self._has_ended, 60, "the end")

    def _end(self) -> None:
        """All workers succeed, or somebody asks for the end."""
        if self._chance.random() < 0.2:
            self.tell("--", "the job is to stop")
            wanted = rows.encode(StopWanted(code=143, reason="somebody asked for it"))
            self._server.put(rows.base(RUN_ID) + rows.WANT_STOP, wanted)
        else:
            for agent in self._present():
                agent.finish()

    def _add(self) -> VirtualAgent:
        name = f"n{len(self._agents)}"
        agent = self._agents[name] = VirtualAgent(
            name,
            self._settings,
            self._server,
            self._ends,
            self._invariants,
            random.Random(self._chance.random()),
            self.tell,
        )
        return agent

    def _present(self) -> list[VirtualAgent]:
        return [agent for agent in self._agents.values() if agent.alive and not agent.left]

    def _running(self) -> list[VirtualAgent]:
        return [agent for agent in self._present() if agent.place is not None]

    def _all_run(self) -> bool:
        """As many as may run workers, in one round."""
        present, running = self._present(), self._running()
        if self._is_over():
            return True
        if len(present) < self._settings.min_nodes:
            return not running
        numbers = {agent.place.round for agent in running if agent.place}
        return len(running) == min(len(present), self._settings.max_nodes) and len(numbers) == 1

    def _is_over(self) -> bool:
        return not self._present()

    def _has_ended(self) -> bool:
        """Whether all have, but those who came when it was over, and are too few for another."""
        return not self._running() and len(self._present()) < self._settings.min_nodes

    async def _until(
        self, holds: Callable[[], bool], seconds: float, what: str, step: float = 0.5
    ) -> None:
        deadline = self._loop.time() + seconds
        while not holds():
            if self._loop.time() > deadline:
                present, running = len(self._present()), len(self._running())
                raise Violation(
                    f"{what} did not come within {seconds} s: {running} of {present} run; "
                    f"header {self._invariants.header}"
                )
            await asyncio.sleep(step)

    # ---- what befalls it

    async def _befall(self) -> None:
        plan = self._plan
        faults: tuple[Callable[[random.Random], str], ...] = (
            self._crash,
            self._join,
            self._leave,
            self._drain,
            self._fail,
            self._pause,
            self._cut_off_store,
            self._cut_off_all,
            self._split,
            self._flip,
            self._outage,
            self._loss,
            self._compact,
            self._crash_leader,
            self._pause_leader,
        )
        number = self._chance.randint(min(3, plan.faults), plan.faults)
        moments = sorted(self._chance.uniform(0, plan.seconds) for _ in range(number))
        begun = self._loop.time()
        for number, moment in enumerate(moments):
            fault = self._chance.choice(faults)
            chance = random.Random(self._chance.random())
            await asyncio.sleep(max(0.0, begun + moment - self._loop.time()))
            if plan.only is None or number in plan.only:
                what = fault(chance)
                if what:
                    self._happened.append(number)
                    self.tell(f"[{number}]", what)

    def _some(self, chance: random.Random) -> VirtualAgent | None:
        present = self._present()
        return chance.choice(present) if present else None

    def _leader(self) -> VirtualAgent | None:
        return next((a for a in self._present() if a.rendezvous._leads()), None)

    def _crash(self, chance: random.Random) -> str:
        agent = self._some(chance)
        return self._crash_one(agent)

    def _crash_leader(self, chance: random.Random) -> str:
        return self._crash_one(self._leader())

    def _crash_one(self, agent: VirtualAgent | None) -> str:
        if agent is None or len(self._present()) <= self._settings.min_nodes:
            return ""
        agent.crash()
        return f"{agent.name} crashes"

    def _join(self, chance: random.Random) -> str:
        return f"{self._add().name} joins" if self._present() else ""

    def _leave(self, chance: random.Random) -> str:
        agent = self._some(chance)
        if agent is None or len(self._present()) <= self._settings.min_nodes:
            return ""
        agent.leave()
        return f"{agent.name} leaves"

    def _drain(self, chance: random.Random) -> str:
        agent = self._some(chance)
        enough = len(self._present()) > self._settings.min_nodes
        if agent is None or not enough or not self._server.up:
            return ""
        agent.left = True
        self._server.put(rows.base(RUN_ID) + rows.WANT_DRAIN + agent.name, b"")
        return f"{agent.name} is to be drained"

    def _fail(self, chance: random.Random) -> str:
        running = self._running()
        if not running:
            return ""
        agent = chance.choice(running)
        agent.fail()
        return f"workers of {agent.name} fail"

    def _pause(self, chance: random.Random) -> str:
        return self._pause_one(self._some(chance), chance)

    def _pause_leader(self, chance: random.Random) -> str:
        return self._pause_one(self._leader(), chance)

    def _pause_one(self, agent: VirtualAgent | None, chance: random.Random) -> str:
        if agent is None:
            return ""
        seconds = chance.choice((1.0, 8.0, 15.0, 30.0))
        self._network.pause(agent.name)
        self._loop.call_later(seconds, self._resume, agent)
        return f"{agent.name} stands still for {seconds} s"

    def _resume(self, agent: VirtualAgent) -> None:
        self._network.resume(agent.name)
        agent.resume()

    def _cut(self, these: set[str], those: set[str], seconds: float) -> None:
        if self._is_healed:
            return
        cut = frozenset(these), frozenset(those)
        self._network.cuts.append(cut)
        self._loop.call_later(seconds, self._mend, cut)

    def _mend(self, cut: tuple[frozenset[str], frozenset[str]]) -> None:
        if cut in self._network.cuts:
            self._network.cuts.remove(cut)

    def _cut_off_store(self, chance: random.Random) -> str:
        agents = [a.name for a in self._present() if chance.random() < 0.3]
        seconds = chance.choice((3.0, 15.0, 30.0))
        self._cut(set(agents), {STORE}, seconds)
        return f"{', '.join(agents)} cannot reach the store for {seconds} s"

    def _cut_off_all(self, chance: random.Random) -> str:
        agent = self._some(chance)
        if agent is None:
            return ""
        seconds = chance.choice((3.0, 15.0, 30.0))
        self._cut({agent.name}, {STORE, *self._agents.keys() - {agent.name}}, seconds)
        return f"{agent.name} is cut off for {seconds} s"

    def _split(self, chance: random.Random) -> str:
        """Two halves that do not reach each other; one has the store, or neither."""
        half = {name for name in self._agents if chance.random() < 0.5}
        other = self._agents.keys() - half
        seconds = chance.choice((3.0, 15.0, 40.0))
        without = other if chance.random() < 0.7 else other | half
        self._cut(half, other, seconds)
        self._cut(without, {STORE}, seconds)
        return f"{sorted(half)} and the rest are apart for {seconds} s; {len(without)} storeless"

    def _flip(self, chance: random.Random) -> str:
        """Two halves; now the one has the store, now the other, and in the end all again."""
        half = {name for name in self._agents if chance.random() < 0.5}
        other = self._agents.keys() - half
        length = chance.choice((0.7, 1.5, 3.0)) * self._settings.ttl
        self._cut(half, other, 3 * length)
        for number, without in enumerate((half, other, half)):
            self._loop.call_later(number * length, self._cut, without, {STORE}, length)
        return f"{sorted(half)} and the rest are apart, and have the store by turns of {length} s"

    def _outage(self, chance: random.Random) -> str:
        seconds = chance.choice((2.0, 12.0, 25.0))
        self._server.stop()
        self._loop.call_later(seconds, self._server.start)
        return f"the store is down for {seconds} s"

    def _loss(self, chance: random.Random) -> str:
        self._network.loss, self._network.slowest = 0.2, 0.5
        self._loop.call_later(5.0, self._calm)
        return "the store's answers are slow, or lost"

    def _calm(self) -> None:
        self._network.loss, self._network.slowest = 0.0, 0.02

    def _compact(self, chance: random.Random) -> str:
        self._server.compact()
        self._server.break_watches()
        self._server.extend_leases()
        return "the store elects, compacts, breaks watches"

    def _heal(self) -> None:
        self.tell("--", "the faults stop")
        self._is_healed = True
        self._network.heal()
        if not self._server.up:
            self._server.start()
        for agent in self._agents.values():
            agent.resume()
