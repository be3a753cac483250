"""What has stood in the store, and what has truly happened: what all oracles judge by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simulation.codec import Codec

from torsh_runtime.store.base import Compare, Entry, Event
from torshrun.rendezvous import rows
from torshrun.rendezvous.base import ReportOutcome
from torshrun.rendezvous.rows import Header, LeaderRow, NodeRow, SizeWanted, StopWanted, VerdictRow


class Violation(AssertionError):
    """An invariant does not hold."""


def check(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


class Commit(NamedTuple):
    """A change in the store."""

    author: str
    """Who asked for it; "" if a lease has ended, or somebody from outside did."""
    compares: Sequence[Compare]
    events: Sequence[Event]


class Term(NamedTuple):
    """A leader's row as it stands."""

    node: str
    revision: int


class Record:
    """Kept by what goes into the store, never by what the agents believe."""

    def __init__(self, codec: Codec, least: int, most: int) -> None:
        self.codec = codec
        self.limits = {(least, most)}
        """All sizes that were ever asked for."""
        self.losses = 0
        """How often the store has lost what it held."""
        self.leader: Term | None = None
        self.leaders: set[str] = set()
        """Who was ever elected."""
        self.header: Header | None = None
        self.header_revision = 0
        self.verdict: VerdictRow | None = None
        self.verdicts: set[tuple[str, int]] = set()
        """Outcomes and codes of all that ever stood."""
        self.nodes: dict[str, NodeRow] = {}
        self.vanished: set[str] = set()
        """Nodes whose rows have gone since the last round was formed, if only for a while."""
        self.drained: set[str] = set()
        self.stops: set[int] = set()
        """Codes with which somebody asked for the end."""
        self.inside: dict[str, NodeRow] = {}
        """The latest row of each node that said so."""
        self.formed: dict[str, int] = {}
        """Tokens of the rounds, and how often the store had lost all when they last stood."""
        # What the store does not know:
        self.running: dict[str, str] = {}
        """Agents that run workers, and the token of the round they are of."""
        self.starters: defaultdict[str, set[str]] = defaultdict(set)
        """Who has ever started workers of each round, by its token."""
        self.outcomes: defaultdict[str, dict[str, ReportOutcome]] = defaultdict(dict)
        """How the workers of each agent in a round ended."""
        self.leavers: set[str] = set()
        """Agents that were told to go."""
        self.expired: set[str] = set()
        """Agents that were ever out of touch for so long that their workers had to end."""

    def rounds_running(self) -> set[str]:
        """Tokens of the rounds whose workers run, of those that the store has known since it last
        lost everything: what it does not know nobody can wait for.
        """
        found = set(self.running.values())
        return {token for token in found if self.formed.get(token) == self.losses}

    def size_of(self, token: str) -> Counter[ReportOutcome]:
        return Counter(self.outcomes[token].values())

    # ---- what stands in the store

    def apply(self, commit: Commit) -> None:
        for event in commit.events:
            self._take(event)

    def lose(self, items: Iterable[Entry]) -> None:
        """The store holds nothing but these any more."""
        self.losses += 1
        self.leader, self.header, self.header_revision, self.verdict = None, None, 0, None
        self.nodes.clear()
        self.drained.clear()
        for item in items:
            self._take(Event("put", *item))

    def _take(self, event: Event) -> None:
        name, there = self.codec.name(event.key), event.kind == "put"
        read = self.codec.read
        if name == rows.LEADER:
            leader = read(LeaderRow, event) if there else None
            self.leader = Term(leader.node, event.revision) if leader else None
            self.leaders.update({leader.node} if leader else ())
        elif name == rows.ROUND:
            before, self.header = self.header, read(Header, event) if there else None
            if before and self.header and before.token != self.header.token:
                self.vanished.clear()
            self.header_revision = event.revision if there else 0
            if self.header:
                self.formed[self.header.token] = self.losses
        elif name == rows.VERDICT:
            self.verdict = read(VerdictRow, event) if there else None
            if self.verdict:
                self.verdicts.add((self.verdict.outcome, self.verdict.code))
        elif name.startswith(rows.NODES):
            self._take_node(name.removeprefix(rows.NODES), event, there)
        elif name.startswith(rows.WANTS):
            self._take_want(name, event, there)

    def _take_want(self, name: str, event: Event, there: bool) -> None:
        if name.startswith(rows.WANT_DRAIN):
            node, is_asked = name.removeprefix(rows.WANT_DRAIN), bool(self.codec.plain(event))
            (self.drained.add if there and is_asked else self.drained.discard)(node)
        elif there and name == rows.WANT_SIZE:
            if wanted := self.codec.read(SizeWanted, event):
                self.limits.add((wanted.min_nodes, wanted.max_nodes))
        elif there and name == rows.WANT_STOP:
            stop = self.codec.read(StopWanted, event)
            self.stops.update({stop.code} if stop else ())

    def _take_node(self, node: str, event: Event, there: bool) -> None:
        row = self.codec.read(NodeRow, event) if there else None
        if row is None:
            self.nodes.pop(node, None)
            self.vanished.add(node)
            return
        self.nodes[node] = row
        known = self.inside.get(node)
        if row.state == "inside" and (known is None or row.sequence >= known.sequence):
            self.inside[node] = row  # a store that is put back shows older ones again

    def stays(self, node: str) -> bool:
        """Whether the store says that this node may have a place in the next round."""
        row = self.nodes.get(node)
        able = row is not None and row.state in ("waiting", "reported") and not row.leaving
        return able and node not in self.drained
