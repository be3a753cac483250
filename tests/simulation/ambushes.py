"""Faults that are aimed: they strike at a certain request, between a decision and its effect."""

from __future__ import annotations

import random
from collections.abc import Callable

from simulation.faults import Fault, Faults
from simulation.network import Mishap
from simulation.virtual_agent import VirtualAgent
from simulation.world import World

Strike = Callable[[VirtualAgent], Mishap]
WRITES = ("elect", "open", "close", "conclude", "enter", "report", "places")
GIVES_UP = 5.0
"""Seconds after which a request is given up, so that what comes then finds others under way."""


class Ambushes:
    """Each lies in wait for a while, and most provoke what they wait for."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self.all: tuple[Fault, ...] = (
            self._stop_before,
            self._late,
            self._late_row,
            self._lose,
            self._crash_at,
            self._two_candidates,
            self._old_leader,
            self._late_open,
            self._slow_entry,
            self.never_enters,
        )

    def _lie(self, kind: str, strike: Strike, who: str = "", seconds: float = 30.0) -> None:
        """Wait so long for a request of this kind, and strike at the first."""
        world, end = self._world, self._world.loop.time() + seconds

        def ambush(sender: str, what: str) -> Mishap | None:
            agent = world.agents[sender]
            if world.loop.time() > end:
                world.network.ambushes.remove(ambush)
                return None
            if not what.startswith(kind) or who not in ("", sender) or not agent.alive:
                return None
            world.network.ambushes.remove(ambush)
            world.tell(sender, f"is caught as it is about to {what}")
            return strike(agent)

        world.network.ambushes.append(ambush)

    def _provoke(self, kind: str, chance: random.Random) -> str:
        """Let something happen that leads to such a write."""
        if kind == "elect":
            return self._faults.crash_leader(chance)
        if kind == "conclude" or chance.random() < 0.3:
            return ""
        return self._faults.fail(chance)

    def _stop_before(self, chance: random.Random) -> str:
        """Who is about to write stands still, and writes when it goes on."""
        kind = chance.choice(WRITES)
        seconds = chance.choice((0.5, 0.85, 1.1, 1.5, 3.0)) * self._world.settings.ttl

        def strike(agent: VirtualAgent) -> Mishap:
            self._world.pause(agent, seconds)
            return Mishap()

        self._lie(kind, strike)
        what = self._provoke(kind, chance)
        return f"who is to {kind} next stands still for {seconds} s; {what}"

    def _late(self, chance: random.Random) -> str:
        """A write, or its answer, is under way for seconds, beyond its sender's patience too."""
        kind = chance.choice((*WRITES, "row", "grant", "keep_alive", "get", "list"))
        ttl = self._world.settings.ttl
        seconds = chance.choice((0.3, 0.9 * ttl, 1.3 * ttl, GIVES_UP + chance.uniform(0, 0.3)))
        half = chance.random() < 0.6
        mishap = Mishap(late=seconds) if half else Mishap(answer_late=seconds)
        self._lie(kind, lambda agent: mishap)
        what = self._provoke(kind, chance)
        return (
            f"the next to {kind} is {seconds:.2f} s late{'' if half else ' to hear of it'}; {what}"
        )

    def _late_row(self, chance: random.Random) -> str:
        """What a node wrote comes when it has given up, and has written more."""
        seconds = chance.choice((5.5, 8.0, 12.0, 20.0))
        kind = chance.choice(("report", "report", "row", "enter"))
        self._lie(kind, lambda agent: Mishap(late=seconds))
        return f"the next to {kind} is {seconds} s late; {self._faults.fail(chance)}"

    def _lose(self, chance: random.Random) -> str:
        kind = chance.choice((*WRITES, "grant"))
        for _ in range(chance.choice((1, 2))):
            self._lie(kind, lambda agent: Mishap(is_lost=True))
        return f"the answer to the next {kind} is lost; {self._provoke(kind, chance)}"

    def _crash_at(self, chance: random.Random) -> str:
        """Just before it is sent, or just after."""
        kind, after = chance.choice(WRITES), chance.random() < 0.5

        def strike(agent: VirtualAgent) -> Mishap:
            if after:
                self._world.loop.call_soon(
                    self._faults.crash_one, agent, chance, context=self._world.network.outside
                )
            else:
                self._faults.crash_one(agent, chance)
            return Mishap()

        self._lie(kind, strike)
        what = self._provoke(kind, chance)
        return f"who is to {kind} next crashes {'after' if after else 'before'} it; {what}"

    def _two_candidates(self, chance: random.Random) -> str:
        """The first to stand is slower than the second, by less or more than anybody waits."""
        seconds = chance.choice((0.05, 0.5, 3.0, GIVES_UP + 0.1))
        self._lie("elect", lambda agent: Mishap(late=seconds))
        what = self._faults.crash_leader(chance)
        return f"the next candidate's row is {seconds} s late; {what}"

    def _old_leader(self, chance: random.Random) -> str:
        """A leader decides, and its write comes when another has been elected."""
        leader = self._world.leader()
        if leader is None:
            return ""
        ttl = self._world.settings.ttl
        seconds = chance.choice((1.2, 1.6, 2.5)) * ttl
        stands = chance.random() < 0.6

        def strike(agent: VirtualAgent) -> Mishap:
            self._world.pause(agent, seconds)
            return Mishap(late=0.0 if stands else seconds)

        self._lie(chance.choice(("close", "open", "places")), strike, leader.name)
        return (
            f"{leader.name} stands still as it leads, for {seconds} s; {self._faults.fail(chance)}"
        )

    def _late_open(self, chance: random.Random) -> str:
        """A round is formed when its leader has given up, and is about to form it again."""
        seconds = GIVES_UP + chance.uniform(0.03, 0.12)

        def strike(agent: VirtualAgent) -> Mishap:
            self._lie("grant", lambda agent: Mishap(answer_late=0.5), agent.name)
            return Mishap(late=seconds)

        self._lie("open", strike)
        return f"the next round is formed {seconds:.2f} s late; {self._faults.fail(chance)}"

    def _slow_entry(self, chance: random.Random) -> str:
        """A node is about to enter a round, which is over when its row comes."""
        seconds = chance.choice((0.5, 0.85)) * self._world.settings.ttl

        def strike(agent: VirtualAgent) -> Mishap:
            loop, outside = self._world.loop, self._world.network.outside
            for moment in (0.05, 0.3):
                loop.call_later(moment, self._faults.fail, chance, context=outside)
            if chance.random() < 0.5:
                return Mishap(late=seconds)
            self._world.pause(agent, seconds)
            return Mishap()

        self._lie("enter", strike)
        return f"the next to enter a round is {seconds:.2f} s slow; {self._faults.fail(chance)}"

    def never_enters(self, chance: random.Random, seconds: float = 60.0) -> str:
        """A node that cannot read its place, though it lives and its lease is renewed."""
        agent = self._faults.some(chance)
        if agent is None:
            return ""
        place, world = f"get {self._world.codec.key('place/')}", self._world
        end = world.loop.time() + chance.uniform(5.0, seconds)

        def ambush(sender: str, what: str) -> Mishap | None:
            if sender != agent.name or not what.startswith(place) or world.loop.time() > end:
                return None
            return Mishap(is_lost=True)

        world.network.ambushes.append(ambush)
        return f"{agent.name} cannot read its place; {self._faults.fail(chance)}"
