"""No worker without a grant: workers end in time when neither the store nor a leader answers.

The bound is computed from the messages that arrived: 0.9 ttl after the sending of the last request
that was answered. Only who leads may go on without the store, while all whose workers run beat
and hear its answers, for as long as an outage may last.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextvars import copy_context

from simulation.record import Commit, Record, check
from simulation.virtual_loop import VirtualLoop

from torshrun.rendezvous import rows
from torshrun.rendezvous.settings import Settings

GRANT = 0.9
"""Part of the ttl; not taken from the code under test."""
TINY = 1e-6


class Grants:
    """Judges how long workers run, and leaders grant."""

    def __init__(self, loop: VirtualLoop, record: Record, settings: Settings) -> None:
        self._loop = loop
        self._outside = copy_context()
        """Looks happen while agents stand still."""
        self._record = record
        self._length = GRANT * settings.ttl
        self._outage = settings.outage_timeout
        self._contact: defaultdict[str, float] = defaultdict(lambda: -math.inf)
        """When each agent sent the last renewal that the store answered."""
        self._leading: defaultdict[str, float] = defaultdict(lambda: -math.inf)
        """The same of the lease that its row as the leader stands on."""
        self._granted: defaultdict[str, float] = defaultdict(lambda: -math.inf)
        """The same of beats that a leader granted."""
        self._answered: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """When the last beat of each agent came to a leader that learnt of its answer, or its
        first one.
        """
        self._watched: set[str] = set()

    def on_contact(self, agent: str, sent: float, leads: bool) -> None:
        """`leads`: whether the lease held the leader's row when it was renewed, or does now."""
        self._contact[agent] = max(self._contact[agent], sent)
        if leads:
            self._leading[agent] = max(self._leading[agent], sent)

    def on_confirmed(self, agent: str, sent: float) -> None:
        """It has read its own row as the leader."""
        self._leading[agent] = max(self._leading[agent], sent)

    def on_commit(self, commit: Commit) -> None:
        """Who is elected leads as long as its lease was last renewed for."""
        for event in commit.events:
            if commit.author and self._record.codec.name(event.key) == rows.LEADER:
                self._leading[commit.author] = self._contact[commit.author]

    def on_beat(self, agent: str, leader: str, arrived: float) -> None:
        self._answered[leader].setdefault(agent, arrived)

    def on_answer(
        self, agent: str, leader: str, sent: float, arrived: float, is_granted: bool
    ) -> None:
        beats = self._answered[leader]
        beats[agent] = max(beats.get(agent, arrived), arrived)
        if is_granted:
            self._granted[agent] = max(self._granted[agent], sent)

    def on_grant(self, leader: str, now: float) -> None:
        """A leader has granted a beat."""
        if now <= self._leading[leader] + self._length:
            return
        end = self._without_store(leader) + self._length
        check(now <= end + TINY, f"{leader} grants a beat {now - end:.3f} s after its own grant")

    def _without_store(self, leader: str) -> float:
        """The last moment by which a leader may reckon that all of its round count on it."""
        if leader not in self._record.leaders:
            return -math.inf
        running, beats = self._record.running, self._answered[leader]
        token = running.get(leader)
        others = (node for node in running if node != leader and running[node] == token)
        heard = min((beats.get(node, -math.inf) for node in others), default=math.inf)
        return min(heard, self._leading[leader] + self._outage - self._length)

    def end(self, agent: str) -> float:
        """When its workers must have ended, unless it hears more; later ends need not be known
        before the first has come.
        """
        known = max(self._contact[agent], self._granted[agent]) + self._length
        if known > self._loop.time():
            return known
        return max(known, self._without_store(agent) + self._length)

    def started(self, agent: str) -> None:
        end = self.end(agent)
        late = self._loop.time() - end
        check(late < 0, f"{agent} starts workers {late:.3f} s after its last grant")
        if agent not in self._watched:
            self._watched.add(agent)
            self._loop.call_at(end + TINY, self._look, agent, context=self._outside)

    def _look(self, agent: str) -> None:
        if agent not in self._record.running:
            self._watched.discard(agent)
            return
        end = self.end(agent)
        late = self._loop.time() - end
        check(late < TINY / 2, f"workers of {agent} run {late:.3f} s after its last grant")
        self._loop.call_at(end + TINY, self._look, agent, context=self._outside)
