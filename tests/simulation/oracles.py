"""What must hold at every step, whatever happens: each oracle watches from outside.

They know who wrote what into the store, which messages arrived, whose workers run, and the exact
time. None asks the code under test what it believes.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulation.codec import Codec
from simulation.grants import Grants
from simulation.leadership import Leadership
from simulation.record import Commit, Record, check
from simulation.rounds import Rounds
from simulation.verdicts import Verdicts
from simulation.virtual_loop import VirtualLoop

from torsh_runtime.store.base import Entry, Event
from torshrun.rendezvous import rows
from torshrun.rendezvous.base import NodeAssignment, ReportOutcome, Verdict
from torshrun.rendezvous.settings import Settings

__all__ = ["Commit", "Oracles"]


class Oracles:
    """All of them, and what they judge by."""

    def __init__(self, loop: VirtualLoop, codec: Codec, settings: Settings) -> None:
        self.record = Record(codec, settings.min_nodes, settings.max_nodes)
        self.rounds = Rounds(self.record)
        self.verdicts = Verdicts(self.record, settings.max_restarts)
        self.grants = Grants(loop, self.record, settings)
        self.on_contact = self.grants.on_contact
        self.on_confirmed = self.grants.on_confirmed
        self.on_answer = self.grants.on_answer
        self.on_beat = self.grants.on_beat
        self.on_grant = self.grants.on_grant
        self._leadership = Leadership(self.record)
        self._checks = (self._leadership.check, self.rounds.check, self.verdicts.check)

    def on_commit(self, commit: Commit) -> None:
        """A change in the store, before it counts."""
        for judge in self._checks:
            judge(commit)
        self.record.apply(commit)
        self.grants.on_commit(commit)
        for event in commit.events:
            if self.record.codec.name(event.key) == rows.EPOCH:
                self._turn(event)

    def on_loss(self, items: Iterable[Entry]) -> None:
        """The store holds nothing but these any more."""
        codec = self.record.codec
        entries = {item.key: item for item in items}
        codec.turn(entries.get(codec.key(rows.EPOCH)))
        self.record.lose(entries.values())

    def _turn(self, event: Event) -> None:
        """Nothing of an epoch counts in the next."""
        there = event.kind == "put"
        entry = Entry(*event[1:]) if there else None
        if self.record.codec.turn(entry):
            stands = self.record.header_revision  # of what is no header any more
            self.record.lose(())
            self.record.header_revision = stands

    # ---- what agents and workers do

    def started(self, agent: str, place: NodeAssignment) -> None:
        """Workers of a round have been started."""
        row = self.record.inside.get(agent)
        known = row is not None and row.round == place.round
        check(known, f"{agent} starts round {place.round}, which no row of it in the store says")
        assert row is not None
        self.rounds.started(agent, row.token, place)
        self.record.running[agent] = row.token
        self.record.starters[row.token].add(agent)
        self.grants.started(agent)

    def moved(self, agent: str, left: str, place: NodeAssignment) -> None:
        """Its workers go on in a round of other nodes, and have left the one before."""
        self.rounds.check_left(agent, left, place)
        self.started(agent, place)

    def stopped(self, agent: str) -> None:
        """None of its workers runs any more."""
        self.record.running.pop(agent, None)

    def reported(self, agent: str, token: str, outcome: ReportOutcome) -> None:
        """How its workers ended."""
        self.record.outcomes[token][agent] = outcome
        self.verdicts.failures += outcome == "failed"

    def over(self, agent: str, verdict: Verdict) -> None:
        """It was told how the job ended."""
        self.verdicts.over(agent, verdict)

    def expired(self, agent: str) -> None:
        self.record.expired.add(agent)
