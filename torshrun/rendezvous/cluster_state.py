"""Holds what the leader knows of the nodes. Pure: no clock and no I/O; each event costs O(1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.membership import Membership, derive
from torshrun.rendezvous.restart import History
from torshrun.rendezvous.rows import Header, NodeRow, SizeWanted, StopWanted
from torshrun.rendezvous.settings import Settings
from torshrun.rendezvous.sight import Sight, Term

FORGOTTEN_AFTER = 10.0
"""Number of ttls after which a node without heartbeats and row no longer belongs to the job."""


@dataclass(slots=True)
class ControlRequests:
    """Holds what was requested from outside."""

    size: SizeWanted | None = None
    stop: StopWanted | None = None
    drained: set[str] = field(default_factory=set)
    """Nodes that are to go."""


@dataclass(slots=True)
class Nodes:
    """Holds the nodes' messages, by node: tables, since a copy at each event would cost O(n)."""

    rows: dict[str, NodeRow] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    """Revisions at which rows were first seen in their present state of waiting.

    They give the order of arrival.
    """
    latest: dict[str, NodeRow] = field(default_factory=dict)
    """The last row of each node, also of those that are gone."""
    told: dict[str, NodeRow] = field(default_factory=dict)
    """Last row of each node in this round; those that have reported, in the order of reports."""
    summaries: dict[str, bytes] = field(default_factory=dict)
    """Last summary of each node that has a row."""


@dataclass(slots=True)
class Heard:
    """The nodes' beats, by node."""

    granted: dict[str, float] = field(default_factory=dict)
    """Times at which nodes' beats were last granted, in this round."""
    sure: dict[str, float] = field(default_factory=dict)
    """Times at which beats came of which the node knows that they were answered."""
    last: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The number of each node's last beat, and when it came."""
    all_since: float = -math.inf
    count_again: float = -math.inf
    """Time at which to check again who has beaten.

    It is in the past if the round has nodes not counted yet.
    """


class ClusterState:
    """The nodes, the round and what was asked for, as one leader sees them in its term, by its own
    clock. What follows from the rows is derived anew after they have changed, see `roster`.
    """

    def __init__(self, settings: Settings, node: str, now: float, fence: int = 0) -> None:
        """Begin a term; `node` is the leader's own id, and `fence` the revision of its election."""
        self.term = Term(settings, node, fence)
        self.sight = Sight.at_start(settings, now)
        self.wishes = ControlRequests()
        self.nodes = Nodes()
        self.heard = Heard()
        self._roster: Membership | None = None

    def with_sight(self, sight: Sight) -> ClusterState:
        """Return the state of the same nodes with another sight."""
        other = object.__new__(type(self))
        other.term, other.sight, other.wishes = self.term, sight, self.wishes
        other.nodes, other.heard, other._roster = self.nodes, self.heard, self._roster
        return other

    @property
    def settings(self) -> Settings:
        return self.term.settings

    @property
    def node(self) -> str:
        return self.term.node

    @property
    def fence(self) -> int:
        return self.term.fence

    @property
    def header(self) -> Header | None:
        return self.sight.header

    @property
    def rows(self) -> dict[str, NodeRow]:
        return self.nodes.rows

    @property
    def latest(self) -> dict[str, NodeRow]:
        return self.nodes.latest

    @property
    def told(self) -> dict[str, NodeRow]:
        return self.nodes.told

    # ---- what is derived

    @property
    def roster(self) -> Membership:
        """Return the state of each node in the round; O(nodes) after a change."""
        if self._roster is None:
            self._roster = derive(self.header, self.rows, self.sight.seated, self.told, self.goes)
        return self._roster

    @property
    def limits(self) -> tuple[int, int]:
        """Return the least and the greatest number of nodes."""
        source = self.wishes.size or self.header or self.settings
        return source.min_nodes, source.max_nodes

    @property
    def history(self) -> History:
        header = self.header
        if header is None:
            return History()
        return History(restarts=header.restarts, streak=header.streak, startup=header.startup)

    @property
    def untold(self) -> bool:
        """Return whether a node is to leave and the header does not say so yet."""
        told = self.header.drained if self.header else ()
        return any(node in self.rows and node not in told for node in self.wishes.drained)

    @property
    def misses_untold(self) -> bool:
        """Return whether a node is absent, waits to read that, and the header does not say so."""
        missed = self.header.missed if self.header else ()
        return any(map(self.is_absent, self.sight.absent.keys() - missed))

    def fenced_at(self, node: str) -> float:
        """Return the time after which a node that is apart can run no workers any more."""
        last = self.told.get(node)
        if last and last.state != "inside":
            return -math.inf
        return max(
            self.heard.granted.get(node, -math.inf) + self.settings.ttl, self.sight.inherited_until
        )

    def host(self, node: str) -> str:
        """Return the host where the node runs or ran, or its id if that is not known."""
        row = self.latest.get(node)
        return row.host if row and row.host else node

    def name(self, node: str) -> str:
        """Return the node's name for people."""
        row, host = self.latest.get(node), self.host(node)
        known_as = f" ({row.address})" if row and row.address not in ("", host) else ""
        return f"node {host}{known_as}"

    def goes(self, row: NodeRow) -> bool:
        """Return whether the row's node leaves, or is to leave."""
        return bool(row.leaving) or row.state == "left" or row.node in self.wishes.drained

    def stays(self, node: str) -> bool:
        """Return whether the node is present and may have a place in the next round."""
        row = self.rows.get(node)
        return bool(row and row.state in ("waiting", "reported") and not self.goes(row))

    def accounts_for(self, node: str) -> bool:
        """Return whether the node belongs to the round, as far as this leader knows."""
        return node in self.told or node in self.sight.seated

    # ---- the round

    def take_header(self, header: Header | None, now: float) -> None:
        """Handle the header in its present form."""
        token = self.sight.token
        self.sight = self.sight.with_header(header, now)
        self._changed()
        if self.sight.token != token:
            self._begin_round()

    def _begin_round(self) -> None:
        self.nodes.told.clear()
        self.heard.granted.clear()
        known = self.rows.keys() | self.sight.seated
        self.nodes.latest = {node: row for node, row in self.latest.items() if node in known}
        for row in self.rows.values():
            self._note(row)

    # ---- rows

    def put(self, row: NodeRow, revision: int) -> None:
        """Handle a row in its present form; ignore it if the node has since written a later one."""
        latest, known = self.latest.get(row.node), self.rows.get(row.node)
        if latest and row.sequence < latest.sequence:
            return
        self.latest[row.node] = self.rows[row.node] = row
        if not known or (row.state == "waiting" and known.state != "waiting"):
            self.nodes.revisions[row.node] = revision
        self.sight = self.sight.with_round(row.round)
        self._note(row)
        self._changed()

    def _note(self, row: NodeRow) -> None:
        """Note what a row says of the round. The success of a node's part is final."""
        known = self.told.get(row.node)
        if row.token != self.sight.token or (known and known.outcome == "succeeded"):
            return
        if known and known.state == "inside":
            del self.told[row.node]
        self.told[row.node] = row

    def drop(self, node: str) -> None:
        """Handle that the node's row is gone."""
        nodes = self.nodes
        for known in (nodes.rows, nodes.revisions, nodes.summaries, self.heard.sure):
            known.pop(node, None)
        self._changed()

    def drain(self, node: str, wanted: bool) -> None:
        """Note whether somebody asked for this node to leave."""
        (self.wishes.drained.add if wanted else self.wishes.drained.discard)(node)
        self._changed()

    def _changed(self) -> None:
        self._roster, self.heard.count_again = None, -math.inf

    def hears(self, node: str) -> bool:
        """Return whether beats of the node reach this leader; if not, it may be of the past."""
        return node == self.node or node in self.heard.sure

    def is_absent(self, node: str) -> bool:
        """Return whether the node has been missed, and has not written a row since."""
        row = self.rows.get(node)
        return row is not None and self.sight.absent.get(node) == row.sequence

    # ---- signs of life

    def note_summary(self, node: str, summary: bytes) -> None:
        """Keep the node's summary while the node has a row."""
        if summary and node in self.rows:
            self.nodes.summaries[node] = summary
        else:
            self.nodes.summaries.pop(node, None)

    def answer_beat(self, beat: Heartbeat, now: float, grant_until: float) -> bool:
        """Return whether to grant a beat, while the leader's own grant lasts until
        `grant_until`.
        """
        if now >= grant_until:
            return False
        heard = self.heard
        number, moment = heard.last.get(beat.node, (0, now))
        if beat.confirmed and beat.confirmed == number:
            heard.sure[beat.node] = moment
        heard.last[beat.node] = (beat.number, now)
        heard.sure.setdefault(beat.node, now)
        told = self.told.get(beat.node)
        if told and told.state in ("inside", "waiting"):
            self._limit_inheritance(now)
        if beat.round < 0:
            return True
        header = self.header
        if not header or header.phase != "open" or beat.token != header.token:
            return False
        heard.granted[beat.node] = now
        if not self.accounts_for(beat.node):
            self.sight = self.sight.with_stranger(now + self.settings.ttl)
        return True

    def _limit_inheritance(self, now: float) -> None:
        """Limit the time for which grants of earlier leaders may last.

        A node of the round beats here, and so no longer to the round's author, who could not
        continue past a lease without it. The author ended by now + ttl, and what it granted ends a
        ttl later.
        """
        self.sight = self.sight.with_bound(now + 2 * self.settings.ttl)

    def heard_all_since(self, now: float) -> float:
        """Return the latest time since which all nodes have beaten; -inf if one of them never has.

        It is computed anew only now and then: an older result is too early, which is safe.
        """
        heard = self.heard
        if now >= heard.count_again:
            heard.all_since = self._count_beats(now)
            heard.count_again = now + self.settings.interval / 16
        return heard.all_since

    def _count_beats(self, now: float) -> float:
        bound = now - FORGOTTEN_AFTER * self.settings.ttl
        for node in [node for node, moment in self.heard.sure.items() if moment < bound]:
            if node not in self.rows:
                del self.heard.sure[node]
        roster = self.roster
        others = (roster.placed | roster.inside | roster.apart) - {self.node}
        if others - self.heard.sure.keys():
            return -math.inf
        return min(self.heard.sure.values(), default=now)
