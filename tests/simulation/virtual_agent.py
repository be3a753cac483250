"""An agent, its keeper and its workers, as far as the rendezvous sees them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from simulation.invariants import Invariants
from simulation.network import Network
from simulation.virtual_beats import VirtualBeats
from simulation.virtual_store import SECRET, Server, VirtualStore

from torshrun.rendezvous.base import (
    Granted,
    JobOver,
    Place,
    RendezvousEvent,
    Report,
    ReportOutcome,
    RoundClosing,
    RoundFormed,
)
from torshrun.rendezvous.rejoin import EpochRendezvous
from torshrun.rendezvous.settings import NodeFacts, Settings

Tell = Callable[[str, str], None]


class VirtualAgent:
    """One node. The keeper's part goes on while the agent stands still."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        server: Server,
        ends: dict[str, VirtualBeats],
        invariants: Invariants,
        chance: random.Random,
        tell: Tell,
        host: str = "",
    ) -> None:
        """`host` is the name of the machine, that of the agent unless given."""
        self.name = name
        self.alive = True
        """Whether the host is."""
        self.over: JobOver | None = None
        self.place: Place | None = None
        """Of the round whose workers run."""
        self.in_round = -1
        """The round that is not reported yet."""
        self.left = False
        self.finishing = False
        """Whether its workers are about to succeed."""
        self.slow_end = 0.0
        """Seconds that its workers need to end once the job is over."""
        self.ended_in_time = False
        """Whether they did so before their grant was over."""
        self._network: Network = server.network
        self._invariants = invariants
        self._chance = chance
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._granted = 0.0
        self._dead_man: asyncio.TimerHandle | None = None
        self._held: list[RendezvousEvent] = []
        facts = NodeFacts(
            node=name,
            host=host or name,
            address=name,
            endpoint=f"tcp:{name}:1",
            nproc=chance.choice((1, 2, 8)),
            ports=lambda: (1, 2),
        )
        self._ends = ends
        self.rendezvous = EpochRendezvous(
            VirtualStore(server, name),
            settings,
            SECRET,
            lambda store, epoch: self._prepare(facts),
            clock=self._loop.time,
            chance=random.Random(chance.random()),
        )
        self._closing: asyncio.Task[None] | None = None
        self.rendezvous.start(self._on_event)

    async def _prepare(self, facts: NodeFacts) -> tuple[NodeFacts, VirtualBeats]:
        return facts, VirtualBeats(self._network, self._ends, self.name)

    @property
    def leads(self) -> bool:
        node = self.rendezvous._node
        return node is not None and node._leads()

    # ---- what the rendezvous says

    def _on_event(self, event: RendezvousEvent) -> None:
        if self.name in self._network.paused:
            self._held.append(event)
        elif self.alive:
            self._handle(event)

    def resume(self) -> None:
        """The agent, but not its keeper, stood still until now."""
        held, self._held = self._held, []
        for event in held:
            self._on_event(event)
        if self.place is None and self.in_round >= 0:
            self._stopped(self.in_round)

    def _handle(self, event: RendezvousEvent) -> None:
        if isinstance(event, Granted):
            self._arm(event.until)
        elif isinstance(event, RoundFormed):
            self._tell(self.name, f"starts round {event.place.round} as {event.place.node_rank}")
            self._start(event.place)
        elif isinstance(event, RoundClosing):
            self._tell(self.name, f"is to stop round {event.round}: {event.reason}")
            self._stop_soon(event.round)
        elif isinstance(event, JobOver):
            self._end(event)

    def _start(self, place: Place) -> None:
        assert self.in_round < 0, f"{self.name} has not reported round {self.in_round}"
        self.in_round = place.round
        if self._granted <= self._loop.time():
            self.report("stopped")  # the agent came back too late: the keeper starts nothing
            return
        self.place = place
        self._invariants.started(self.name, place, self._granted, self._loop.time())
        if self.finishing:
            self._loop.call_later(1.0, self._succeed, place.round)

    def _arm(self, until: float) -> None:
        self._granted = until
        if self._dead_man:
            self._dead_man.cancel()
        self._dead_man = self._loop.call_at(until, self._time_is_up)

    def _kill_workers(self) -> None:
        if self.place is not None:
            place, self.place = self.place, None
            self._invariants.stopped(place.round)

    def _time_is_up(self) -> None:
        """The keeper kills the workers; the agent learns of it when it moves."""
        if self.place is not None:
            self._kill_workers()
            if self.name not in self._network.paused:
                self._stopped(self.in_round)

    def _stop_soon(self, number: int) -> None:
        if number == self.in_round:
            seconds = self._chance.choice((0.0, 0.05, 0.5, 3.0))
            self._loop.call_later(seconds, self._stopped, number)

    def _stopped(self, number: int) -> None:
        if number == self.in_round and self.alive:
            self._kill_workers()
            self.report("stopped")

    def report(self, outcome: ReportOutcome, code: int = 0) -> None:
        """The round's workers have ended."""
        self._kill_workers()
        number, self.in_round = self.in_round, -1
        self.rendezvous.report(Report(round=number, outcome=outcome, code=code))

    def _end(self, event: JobOver) -> None:
        self._tell(self.name, f"ends: {event.verdict.outcome}, {event.verdict.reason}")
        self.over = event
        if not self.left and event.verdict.outcome != "lost":
            self._invariants.over(self.name, event.verdict)
        self._closing = self._loop.create_task(self._end_workers())

    async def _end_workers(self) -> None:
        """They may take longer than a grant lasts, which is renewed until they have ended."""
        if self.place is not None:
            await asyncio.sleep(self.slow_end)
            self.ended_in_time = self.place is not None
        self._kill_workers()
        await self.close()

    # ---- what happens to it

    def fail(self) -> None:
        """A worker fails by itself."""
        if self.place is not None and self.name not in self._network.paused:
            self._tell(self.name, "fails")
            self._invariants.failures += 1
            self.report("failed", 3)

    def finish(self) -> None:
        """Its workers succeed, in this round or the next."""
        self.finishing = True
        self._succeed(self.in_round)

    def _succeed(self, number: int) -> None:
        if self.place is not None and self.place.round == number:
            self.report("succeeded")

    def leave(self) -> None:
        """Somebody sends SIGTERM."""
        self.left = True
        self._tell(self.name, "leaves")
        self.rendezvous.leave("preempted", 75, "SIGTERM")
        if self.in_round >= 0:
            self._stop_soon(self.in_round)

    def crash(self) -> None:
        """The host is gone, all at once."""
        self.alive = False
        self._kill_workers()
        self._ends.pop(self.name, None)
        self.rendezvous._over = True
        node = self.rendezvous._node
        for task in (self.rendezvous._task, *(node._tasks if node else ())):
            if task:
                task.cancel()
        if node:
            node._over = True
            node._pulse.disarm()

    async def close(self) -> None:
        self.alive = False
        await self.rendezvous.close()
        self._ends.pop(self.name, None)
