"""What may befall a virtual job."""

from __future__ import annotations

import random
from collections.abc import Callable

from simulation.network import STORE, Cut
from simulation.virtual_agent import VirtualAgent
from simulation.world import World

from torshrun.rendezvous import rows

Fault = Callable[[random.Random], str]
"""Happens, and says in a line what has, or "" if it had no effect."""


class Faults:
    """Those of nodes and of links, at any moment."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: tuple[Fault, ...] = (
            self._crash,
            self._join,
            self._leave,
            self._drain,
            self.fail,
            self.lose,
            self._pause,
            self._cut_off_store,
            self._cut_off_all,
            self._storeless,
            self._split,
            self._flip,
            self._outage,
            self._loss,
            self._late,
            self._compact,
            self.crash_leader,
            self._pause_leader,
            self._mute_leader,
            self._blind_leader,
            self._lag,
            self._cut_one_way,
            self._crash_loop,
        )

    def some(self, chance: random.Random) -> VirtualAgent | None:
        present = self._world.present()
        return chance.choice(present) if present else None

    def _crash(self, chance: random.Random) -> str:
        return self.crash_one(self.some(chance), chance)

    def crash_leader(self, chance: random.Random) -> str:
        return self.crash_one(self._world.leader(), chance)

    def crash_one(self, agent: VirtualAgent | None, chance: random.Random) -> str:
        if agent is None or len(self._world.present()) <= self._world.settings.min_nodes:
            return ""
        host = chance.random() < 0.5
        self._world.crash(agent, host)
        return f"{agent.name} crashes{' with its host' if host else ''}"

    def _crash_loop(self, chance: random.Random) -> str:
        """An agent that starts again and again, and lives for two seconds."""
        if not self._world.present():
            return ""
        lives = chance.choice((2, 4))
        self._live(lives)
        return f"an agent comes, and crashes after two seconds, {lives} times"

    def _live(self, lives: int) -> None:
        if lives and not self._world.is_healed:
            agent = self._world.add()
            self._world.loop.call_later(2.0, self._die, agent, lives - 1)

    def _die(self, agent: VirtualAgent, lives: int) -> None:
        if agent.alive and len(self._world.present()) > self._world.settings.min_nodes:
            self._world.tell(agent.name, "crashes")
            self._world.crash(agent)
        self._live(lives)

    def _join(self, chance: random.Random) -> str:
        return f"{self._world.add().name} joins" if self._world.present() else ""

    def _leave(self, chance: random.Random) -> str:
        agent = self.some(chance)
        if agent is None or len(self._world.present()) <= self._world.settings.min_nodes:
            return ""
        agent.leave()
        return f"{agent.name} leaves"

    def _drain(self, chance: random.Random) -> str:
        agent = self.some(chance)
        enough = len(self._world.present()) > self._world.settings.min_nodes
        if agent is None or not enough or not self._world.server.up:
            return ""
        self._world.oracles.record.leavers.add(agent.name)
        self._world.server.put(
            rows.base(self._world.settings.run_id) + rows.WANT_DRAIN + agent.name,
            rows.SET,
        )
        return f"{agent.name} is to be drained"

    def fail(self, chance: random.Random) -> str:
        running = self._world.running()
        if not running:
            return ""
        agent = chance.choice(running)
        agent.fail()
        return f"workers of {agent.name} fail"

    def lose(self, chance: random.Random) -> str:
        """Workers of one or two nodes are lost, in the same or in different moments."""
        running = self._world.running()
        if not running:
            return ""
        agents = {chance.choice(running), chance.choice(running)}
        for agent in agents:
            self._world.loop.call_later(chance.choice((0.0, 0.01, 0.5)), agent.lose)
        return f"workers of {', '.join(sorted(agent.name for agent in agents))} are lost"

    def _pause(self, chance: random.Random) -> str:
        return self._pause_one(self.some(chance), chance)

    def _pause_leader(self, chance: random.Random) -> str:
        return self._pause_one(self._world.leader(), chance)

    def _pause_one(self, agent: VirtualAgent | None, chance: random.Random) -> str:
        if agent is None:
            return ""
        seconds = chance.choice((1.0, 8.0, 15.0, 30.0))
        self._world.pause(agent, seconds)
        return f"{agent.name} stands still for {seconds} s"

    def _cut(self, these: set[str], those: set[str], seconds: float) -> None:
        """Both ways."""
        for cut in ((these, those), (those, these)):
            self._cut_way(*cut, seconds)

    def _cut_way(self, these: set[str], those: set[str], seconds: float) -> None:
        """What these send does not reach those."""
        if self._world.is_healed:
            return
        cut = frozenset(these), frozenset(those)
        self._world.network.cuts.append(cut)
        self._world.loop.call_later(seconds, self._mend, cut)

    def _mend(self, cut: Cut) -> None:
        if cut in self._world.network.cuts:
            self._world.network.cuts.remove(cut)

    def _cut_off_store(self, chance: random.Random) -> str:
        agents = [a.name for a in self._world.present() if chance.random() < 0.3]
        seconds = chance.choice((3.0, 15.0, 30.0))
        self._cut(set(agents), {STORE}, seconds)
        return f"{', '.join(agents)} cannot reach the store for {seconds} s"

    def _storeless(self, chance: random.Random) -> str:
        """An agent that the leader alone hears, when the round is to close."""
        agent, ttl = self.some(chance), self._world.settings.ttl
        if agent is None:
            return ""
        self._cut({agent.name}, {STORE}, 3 * ttl)
        self._world.loop.call_later(chance.choice((0.9, 1.5)) * ttl, self.fail, chance)
        return f"{agent.name} cannot reach the store for {3 * ttl} s, and workers are to fail"

    def _cut_off_all(self, chance: random.Random) -> str:
        agent = self.some(chance)
        if agent is None:
            return ""
        seconds = chance.choice((3.0, 15.0, 30.0))
        self._cut({agent.name}, {STORE, *self._world.agents.keys() - {agent.name}}, seconds)
        return f"{agent.name} is cut off for {seconds} s"

    def _cut_one_way(self, chance: random.Random) -> str:
        """Between one agent and the store, or the leader."""
        agent, leader = self.some(chance), self._world.leader()
        if agent is None or leader is None:
            return ""
        one, other = {agent.name}, {STORE}
        if agent is not leader and chance.random() < 0.5:
            other = {leader.name}
        sides = (one, other) if chance.random() < 0.5 else (other, one)
        seconds = chance.choice((3.0, 15.0, 30.0))
        self._cut_way(*sides, seconds)
        return f"nothing of {sides[0]} reaches {sides[1]} for {seconds} s"

    def _mute_leader(self, chance: random.Random) -> str:
        """It hears everybody, and nobody hears it: not even the store, or some of the agents."""
        leader = self._world.leader()
        if leader is None:
            return ""
        rest = {name for name in self._world.agents if name != leader.name}
        deaf = rest if chance.random() < 0.5 else {n for n in sorted(rest) if chance.random() < 0.5}
        seconds = chance.choice((1.5, 3.0)) * self._world.settings.ttl
        self._cut_way({leader.name}, {STORE, *deaf}, seconds)
        return (
            f"nothing of {leader.name} reaches {len(deaf)} agent(s), or the store, for {seconds} s"
        )

    def _blind_leader(self, chance: random.Random) -> str:
        """It loses its lease, and learns late that it does not lead; so do some others."""
        world, leader = self._world, self._world.leader()
        if leader is None:
            return ""
        prefix, ttl = world.codec.key(rows.CONTROL), world.settings.ttl
        others = [a.name for a in world.present() if a is leader or chance.random() < 0.5]
        for name in others:
            world.network.lags[name, prefix] = 3 * ttl
            world.loop.call_later(5 * ttl, self._catch_up, name, prefix)
        self._cut({leader.name}, {STORE}, chance.choice((1.2, 1.6)) * ttl)
        return f"{leader.name} loses its lease, and {len(others)} learn late of what follows"

    def _split(self, chance: random.Random) -> str:
        """Two halves that do not reach each other; one has the store, or neither."""
        half = {name for name in self._world.agents if chance.random() < 0.5}
        other = self._world.agents.keys() - half
        seconds = chance.choice((3.0, 15.0, 40.0))
        without = other if chance.random() < 0.7 else other | half
        self._cut(half, other, seconds)
        self._cut(without, {STORE}, seconds)
        return f"{sorted(half)} and the rest are apart for {seconds} s; {len(without)} storeless"

    def _flip(self, chance: random.Random) -> str:
        """Two halves; now the one has the store, now the other, and in the end all again."""
        half = {name for name in self._world.agents if chance.random() < 0.5}
        other = self._world.agents.keys() - half
        length = chance.choice((0.7, 1.5, 3.0)) * self._world.settings.ttl
        self._cut(half, other, 3 * length)
        for number, without in enumerate((half, other, half)):
            self._world.loop.call_later(number * length, self._cut, without, {STORE}, length)
        return f"{sorted(half)} and the rest are apart, and have the store by turns of {length} s"

    def _outage(self, chance: random.Random) -> str:
        seconds = chance.choice((2.0, 12.0, 25.0))
        self._world.server.stop()
        self._world.loop.call_later(seconds, self._world.server.start)
        return f"the store is down for {seconds} s"

    def _loss(self, chance: random.Random) -> str:
        self._world.network.loss, self._world.network.slowest = 0.2, 0.5
        self._world.loop.call_later(5.0, self._calm)
        return "the store's answers are slow, or lost"

    def _late(self, chance: random.Random) -> str:
        self._world.network.late = chance.choice((0.02, 0.2))
        self._world.loop.call_later(chance.choice((5.0, 20.0)), self._calm)
        return "some requests, answers and beats take seconds"

    def _calm(self) -> None:
        network = self._world.network
        network.loss, network.late, network.slowest = 0.0, 0.0, 0.02

    def _lag(self, chance: random.Random) -> str:
        """One of an agent's watches, which another member of etcd than the others' may serve."""
        agent = self.some(chance)
        if agent is None:
            return ""
        prefix = rows.base(self._world.settings.run_id) + chance.choice(
            (rows.CONTROL, rows.NODES, rows.WANTS)
        )
        lag = chance.choice((0.3, 1.0, 2.5)) * self._world.settings.ttl
        self._world.network.lags[agent.name, prefix] = lag
        seconds = chance.choice((3.0, 15.0, 30.0))
        self._world.loop.call_later(seconds, self._catch_up, agent.name, prefix)
        return f"{agent.name} learns of {prefix} {lag} s late for {seconds} s"

    def _catch_up(self, end: str, prefix: str) -> None:
        self._world.network.lags.pop((end, prefix), None)

    def _compact(self, chance: random.Random) -> str:
        self._world.server.compact()
        self._world.server.break_watches()
        self._world.server.extend_leases()
        return "the store elects, compacts, breaks watches"
