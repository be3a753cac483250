"""An agent, its keeper and its workers, as far as the rendezvous sees them."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from simulation.codec import SECRET
from simulation.record import Violation, check
from simulation.server import Server
from simulation.verdicts import cause_of, code_of
from simulation.virtual_beats import VirtualBeats
from simulation.virtual_loop import END, Handle
from simulation.virtual_store import VirtualStore

from torsh_runtime.store.base import Store
from torshrun.rendezvous.base import (
    Granted,
    JobOver,
    NodeAssignment,
    Rendezvous,
    RendezvousEvent,
    Report,
    ReportOutcome,
    RoundClosing,
    RoundFormed,
    RoundMended,
    RoundOver,
    Standing,
    StandingBy,
)
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.rejoin import EpochRendezvous
from torshrun.rendezvous.settings import NodeFacts, Settings

Tell = Callable[[str, str], None]
WARNED = 0.11
"""Part of the ttl before a grant's end from which on it counts as run out."""


class VirtualAgent:
    """One node. What it does runs in a context of its own, and stops when the node stands still or
    crashes; the keeper's part does not.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        server: Server,
        ends: dict[str, VirtualBeats],
        chance: random.Random,
        tell: Tell,
        host: str = "",
    ) -> None:
        """`host` is the name of its machine, that of the agent unless given."""
        self.name = name
        self._host = host or name
        self.alive = True
        """Whether the agent is."""
        self.over: JobOver | None = None
        self.place: NodeAssignment | None = None
        """Of the round whose workers run."""
        self.in_round = -1
        """The round that is not reported yet."""
        self._since = -1
        """The round in which its workers were started."""
        self._left_round = -1
        """The last round that its workers have left, or are leaving, as some were lost."""
        self._has_lost = self._is_stopping = False
        """Whether workers of the round were lost here, and whether the others are to end."""
        self._told_to_go = False
        self.finishing = False
        """Whether its workers are about to succeed."""
        self.slow_end = 0.0
        """Seconds that its workers need to end once the job is over."""
        self.ended_in_time = False
        """Whether they did so before their grant was over."""
        self.told = ""
        """What it was told last: "closing", or why it stands by."""
        self.moved = -math.inf
        """When it went on, after it had stood still; inf while it does."""
        self._settings = settings
        self._server = server
        self._ends = ends
        self._oracles = server.oracles
        self._chance = chance
        self._tell = tell
        self._loop = server.network.loop
        self._granted = 0.0
        self._token = ""
        self._watchdog: Handle | None = None
        self._outside = server.network.outside
        self._context = copy_context()
        self._context.run(END.set, name)
        self._closing: asyncio.Task[None] | None = None
        self._context.run(self._begin)

    def _begin(self) -> None:
        name, chance = self.name, self._chance
        facts = NodeFacts(
            node=name,
            host=self._host,
            address=name,
            endpoint=f"tcp:{name}:1",
            nproc=chance.choice((1, 2, 8)),
            ports=lambda: (1, 2),
        )

        async def prepare(_store: Store, _epoch: Epoch) -> tuple[NodeFacts, VirtualBeats]:
            network = self._server.network
            return facts, VirtualBeats(network, self._oracles, self._ends, name, self._context)

        async def meet() -> Store:
            return VirtualStore(self._server, name)

        self.rendezvous: Rendezvous = EpochRendezvous(
            meet,
            self._settings,
            SECRET,
            prepare,
            clock=self._loop.time,
            chance=random.Random(chance.random()),
        )
        self.rendezvous.start(self._on_event)

    @property
    def left(self) -> bool:
        """Whether it is to go; a store that loses the request to drain it forgets that."""
        return self._told_to_go or self.name in self._oracles.record.drained

    def pause(self) -> None:
        self.moved = math.inf
        self._loop.stand_still(self.name)

    def resume(self) -> None:
        self.moved = self._loop.time()
        self._loop.move(self.name)

    def stood_still(self) -> bool:
        """Whether it did so while it should have stopped its workers by itself."""
        return self.moved > self._granted - WARNED * self._settings.ttl

    def soon(self, what: Callable[..., object], *args: Any) -> None:
        """Let the agent do it: at once, unless it stands still."""
        self._loop.call_soon(what, *args, context=self._context)

    # ---- what the rendezvous says

    def _on_event(self, event: RendezvousEvent) -> None:
        try:
            self._take(event)
        except Violation as error:  # the rendezvous would make an end of its own of it
            self._loop.call_exception_handler({"message": "a violation", "exception": error})

    def _take(self, event: RendezvousEvent) -> None:
        if isinstance(event, Granted):
            self._arm(event.until)
        elif isinstance(event, StandingBy):
            self.told = event.reason
            self._tell(self.name, f"stands by: {event.reason}")
        elif isinstance(event, RoundFormed):
            self._tell(self.name, f"starts round {event.place.round} as {event.place.node_rank}")
            self._start(event.place)
        elif isinstance(event, RoundClosing):
            self._tell(self.name, f"is to stop round {event.round}: {event.reason}")
            self._note_expiry()
            self.told = "closing"
            self._stop_soon(event.round)
        elif isinstance(event, RoundOver):
            self._tell(self.name, f"hears that round {event.round} is over: {event.reason}")
            self._hear_over(event.round, event.at_commit)
        elif isinstance(event, RoundMended):
            self._go_on(event.place)
        elif isinstance(event, JobOver):
            self._end(event)

    def _note_expiry(self) -> None:
        left = self._oracles.grants.end(self.name) - self._loop.time()
        if left <= WARNED * self._settings.ttl:
            self._oracles.expired(self.name)

    def _start(self, place: NodeAssignment) -> None:
        assert self.in_round < 0, f"{self.name} has not reported round {self.in_round}"
        self.in_round, self.told = place.round, ""
        self._has_lost = self._is_stopping = False
        self._token = self._oracles.record.inside[self.name].token
        if self._granted <= self._loop.time():
            self._oracles.expired(self.name)
            self.report("stopped")  # the agent came back too late: the keeper starts nothing
            return
        self.place, self._since = place, place.round
        self._oracles.started(self.name, place)
        self._check_clock()
        if not place.kept and self._chance.random() < 0.7:
            self._loop.call_later(self._chance.random(), self._join, place.round)
        if self.finishing:
            self._loop.call_later(1.0, self._succeed, place.round)

    def _join(self, number: int) -> None:
        """Its workers can go on among other nodes."""
        if self.place is not None and self._since == number:
            self.soon(self.rendezvous.note_lasting, "any")

    def _go_on(self, place: NodeAssignment) -> None:
        """The next round has begun, unless the workers here are to end or have ended."""
        if self.place is None or self._is_stopping or self.over:
            return
        self._tell(self.name, f"goes on in round {place.round}")
        if place.kept and self._oracles.record.inside[self.name].token != self._token:
            left, self._token = self._token, self._oracles.record.inside[self.name].token
            self._oracles.moved(self.name, left, place)
        else:
            self._oracles.rounds.went_on(self.name, self._token, place)
        self.place, self.in_round, self._has_lost = place, place.round, False
        if self.finishing:
            self._loop.call_later(1.0, self._succeed, place.round)

    def _check_clock(self) -> None:
        """All agents have the virtual time, so that the leader's clock is not ahead."""
        clock = self.rendezvous.common_clock(self._loop.time())
        if clock:
            offset, bound, *_ = clock.reading
            what = f"{clock.leader} is said to be ahead by {offset} s, within {bound} s"
            check(abs(offset) <= bound + 1e-9, f"{self.name}: {what}")

    # ---- the keeper

    def _arm(self, until: float) -> None:
        self._granted = until
        if self._watchdog:
            self._watchdog.cancel()
        self._watchdog = self._loop.call_at(until, self._time_is_up, context=self._outside)

    def _kill_workers(self) -> None:
        if self.place is not None:
            self.place = None
            self._oracles.stopped(self.name)

    def _time_is_up(self) -> None:
        """The keeper kills the workers; the agent learns of it when it moves."""
        if self.place is not None:
            stopping = self.told == "closing" or self.over is not None
            check(stopping or self.stood_still(), f"{self.name} was not told to stop in good time")
            self._kill_workers()
            self._oracles.expired(self.name)
            self.soon(self._stopped, self.in_round)

    # ---- the agent

    def _stop_soon(self, number: int) -> None:
        if number >= self.in_round >= 0:  # it may have passed over a round that others formed
            number, self._is_stopping = self.in_round, True
            seconds = self._chance.choice((0.0, 0.05, 0.5, 3.0))
            self._loop.call_later(seconds, self._stopped, number, context=self._context)

    def _stopped(self, number: int) -> None:
        if number == self.in_round:
            self.report("failed" if self._has_lost else "stopped")

    def report(self, outcome: ReportOutcome) -> None:
        """The round's workers have ended."""
        self._kill_workers()
        number, self.in_round = self.in_round, -1
        self._oracles.reported(self.name, self._token, outcome)
        failed = outcome == "failed"
        self.rendezvous.report(
            Report(
                round=number,
                outcome=outcome,
                code=code_of(self.name) if failed else 0,
                cause=cause_of(self.name) if failed else "",
            )
        )

    def _end(self, event: JobOver) -> None:
        self._tell(self.name, f"ends: {event.verdict.outcome}, {event.verdict.reason}")
        self.over = event
        self._oracles.over(self.name, event.verdict)
        self._closing = self._loop.create_task(self._end_workers())

    async def _end_workers(self) -> None:
        """They may take longer than a grant lasts, which is renewed until they have ended."""
        if self.place is not None:
            await asyncio.sleep(self.slow_end)
            self.ended_in_time = self.place is not None
        self._kill_workers()
        self.alive = False
        await self.rendezvous.close()
        self._ends.pop(self.name, None)

    # ---- what happens to it

    def fail(self) -> None:
        """A worker fails by itself."""
        if self.place is not None:
            self._tell(self.name, "fails")
            self.soon(self._failed, self.place.round)

    def _failed(self, number: int) -> None:
        if self.place is not None and self.place.round == number:
            self.report("failed")

    def lose(self) -> None:
        """A worker is lost, and the others can go on without it."""
        if self.place is not None:
            self.soon(self._lost, self.place.round)

    def _lost(self, number: int) -> None:
        if self._may_mend(number) and not self.finishing:
            self._tell(self.name, f"loses a worker in round {number}")
            self._has_lost = True
            if self._left_round < number:
                self.rendezvous.mend(number, "lost", 1.0, True)
            self._leave_round(number)

    def _hear_over(self, number: int, at_commit: bool) -> None:
        if not self._may_mend(number) or self._left_round == number:
            return
        if self._chance.random() < 0.1:
            self.rendezvous.mend(number, "unable", 1.0, self._has_lost)
        elif not at_commit or self._chance.random() < 0.9:  # else its workers never commit
            self._leave_round(number)

    def _may_mend(self, number: int) -> bool:
        is_here = self.place is not None and self.place.round == number
        return is_here and not (self._is_stopping or self.over)

    def _leave_round(self, number: int) -> None:
        if self._left_round < number:
            self._left_round = number
            seconds = self._chance.choice((0.0, 0.05, 0.5, 3.0))
            self._loop.call_later(seconds, self._park, number, context=self._context)

    def _park(self, number: int) -> None:
        if self._may_mend(number):
            self._oracles.rounds.parked[self.name] = self._token, number
            is_bare = self._chance.random() < 0.1
            standing: Standing = "bare" if is_bare else "parked"
            self.rendezvous.mend(number, standing, 1.0, self._has_lost)

    def finish(self) -> None:
        """Its workers succeed, in this round or the next."""
        self.finishing = True
        self.soon(self._succeed, self.in_round)

    def _succeed(self, number: int) -> None:
        if self._left_round == number:  # it ends in the round that follows
            return
        if self.place is not None and self.place.round == number and not self.over:
            self.report("succeeded")

    def leave(self) -> None:
        """Somebody sends SIGTERM."""
        self._told_to_go = True
        self._oracles.record.leavers.add(self.name)
        self._tell(self.name, "leaves")
        self.soon(self._leave)

    def _leave(self) -> None:
        self.rendezvous.leave("preempted", 75, "SIGTERM")
        if self.in_round >= 0:
            self._stop_soon(self.in_round)

    def crash(self, host: bool) -> None:
        """The agent is gone, all at once; with its host nobody tells those who ask for it."""
        self.alive = False
        self._kill_workers()
        self._loop.stand_still(self.name)
        if host:
            self._server.network.down.add(self.name)
        self._ends.pop(self.name, None)
