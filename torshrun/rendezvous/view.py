"""What the leader knows of the nodes. Pure: no clock and no I/O; each event costs O(1)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from torshrun.rendezvous.beats import Beat
from torshrun.rendezvous.restart import History
from torshrun.rendezvous.rows import Header, NodeRow, SizeWanted, StopWanted
from torshrun.rendezvous.settings import Settings

FAILURES = ("failed", "hung")
FORGOTTEN_AFTER = 10.0
"""Times the ttl: a node that has not beaten for so long, and has no row, is none of ours."""


@dataclass(slots=True)
class Wishes:
    """What was asked for from outside."""

    size: SizeWanted | None = None
    stop: StopWanted | None = None
    drained: set[str] = field(default_factory=set)
    """Nodes that are to go."""
    holds: set[str] = field(default_factory=set)
    """Nodes that asked for no growth just now."""


class View:
    """The nodes, the round and what was asked for, as one leader sees them during its term.

    Times are seconds of the leader's own monotonic clock. A node of the round is *placed* until it
    has entered, then *inside*, and in the end *reported*, or *apart* if its row vanished or says
    that it has dropped out.
    """

    def __init__(self, settings: Settings, node: str, now: float) -> None:
        self.settings = settings
        self.node = node
        """The leader's own id."""
        self.fence = 0
        """The revision of this leader's election."""
        self.rows: dict[str, NodeRow] = {}
        self.revisions: dict[str, int] = {}
        """When each row was first seen in its present state of waiting: the order of arrival."""
        self.header: Header | None = None
        self.closed_at = now
        """When the header was first seen to be closing."""
        self.listed_since_close = False
        """Whether all rows were listed since it is closing, and so all that entered it are known:
        what is heard of nodes may be later than what is heard of the header."""
        self.blind_until = now
        """Until when nodes of the round that nothing is known of may still run workers."""
        self.inherited_until = now
        """Until when nodes of the round may run workers by another leader's grants."""
        self.placed: set[str] = set()
        self.inside: set[str] = set()
        self.apart: set[str] = set()
        self.reports: dict[str, NodeRow] = {}
        self.newcomers: set[str] = set()
        """Nodes that wait and are not in the round."""
        self.going: set[str] = set()
        """Nodes of the round that leave it, and have not succeeded in it."""
        self.dropped: set[str] = set()
        """Nodes of the round that lost touch with it: none of their workers runs any more."""
        self.failures: list[str] = []
        self.succeeded: set[str] = set()
        self.claimed = -1
        """The highest round that a row speaks of."""
        self.strays: set[str] = set()
        """Nodes inside a round that is not the header's, and that they will stop."""
        self.forming: dict[str, tuple[str, ...]] = {}
        """The nodes of each round that this leader set out to form, by the round's token."""
        self.granted: dict[str, float] = {}
        """When a beat of this node was last granted."""
        self._sure: dict[str, float] = {}
        """When a beat came of which the node knows that it was answered."""
        self._last: dict[str, tuple[int, float]] = {}
        self._heard_all_since = -math.inf
        self._count_again = -math.inf
        """When to count anew who has beaten: at once if the round has nodes not counted yet."""
        self.wishes = Wishes()
        self.short_since = now
        """Since when there have been too few nodes."""
        self.enough_since = math.inf
        self.grows_since = math.inf

    # ---- what is derived

    @property
    def limits(self) -> tuple[int, int]:
        """At least and at most how many nodes."""
        known = None if self.orphaned else self.wishes.size or self.header
        source = known or self.settings
        return source.min_nodes, source.max_nodes

    @property
    def history(self) -> History:
        header = self.header
        if header is None or self.orphaned:
            return History()
        return History(restarts=header.restarts, streak=header.streak, startup=header.startup)

    @property
    def max_restarts(self) -> int:
        header = None if self.orphaned else self.header
        return header.max_restarts if header else self.settings.max_restarts

    @property
    def orphaned(self) -> bool:
        """Whether the round that is closing is of nodes that are all unknown here: once it is
        fenced its job has died, and what follows is another of the same run id.
        """
        header = self.header
        is_closing = header is not None and header.phase == "closing"
        return is_closing and header is not None and 0 < header.size == self.unaccounted

    @property
    def unaccounted(self) -> int:
        """Nodes of the round that nothing is known of: the round is another leader's."""
        known = len(self.placed) + len(self.inside) + len(self.apart) + len(self.reports)
        return max(0, self.header.size - known) if self.header else 0

    @property
    def untold(self) -> bool:
        """Whether somebody is to go and the header does not say so yet."""
        told = self.header.drained if self.header else ()
        return any(node in self.rows and node not in told for node in self.wishes.drained)

    def fenced_at(self, node: str) -> float:
        """When a node without a row can run no workers any more."""
        return max(self.granted.get(node, -math.inf) + self.settings.ttl, self.inherited_until)

    def name(self, node: str) -> str:
        """The node as people know it."""
        row = self.rows.get(node) or self.reports.get(node)
        if row is None or not row.host:
            return f"node {node}"
        known_as = f" ({row.address})" if row.address not in ("", row.host) else ""
        return f"node {row.host}{known_as}"

    def stays(self, node: str) -> bool:
        """Whether the node is there and may have a place in the next round."""
        row = self.rows.get(node)
        return bool(row and row.state in ("waiting", "reported") and not self._goes(row))

    # ---- the round

    def take_header(self, header: Header | None, now: float) -> None:
        """The header as it stands."""
        old, self.header = self.header, header
        if header and header.phase == "closing" and (not old or old.phase == "open"):
            self.closed_at = self.short_since = now
            self.listed_since_close = False
        if not header or (old and old.token == header.token):
            return
        self.blind_until = self.inherited_until = now
        self._count_again = -math.inf
        self.placed, self.inside, self.apart, self.reports = set(), set(), set(), {}
        self.going, self.dropped, self.failures, self.succeeded = set(), set(), [], set()
        self.granted = {}
        self.newcomers = set()
        self.enough_since = self.grows_since = math.inf
        self.placed.update(self.forming.pop(header.token, ()))
        for node in self.rows:
            self._sort(node)
        for node in self.placed - self.rows.keys():
            self._set_apart(node)

    # ---- rows

    def put(self, row: NodeRow, revision: int) -> None:
        known = self.rows.get(row.node)
        self.rows[row.node] = row
        if not known or (row.state == "waiting" and known.state != "waiting"):
            self.revisions[row.node] = revision
        self.claimed = max(self.claimed, row.round)
        self._sort(row.node)

    def drop(self, node: str) -> None:
        """The node's row is gone."""
        row = self.rows.pop(node, None)
        self.revisions.pop(node, None)
        self._sure.pop(node, None)
        self._count_again = -math.inf
        for nodes in (self.newcomers, self.strays, self.dropped):
            nodes.discard(node)
        if node in self.placed or node in self.inside:
            self._set_apart(node)
        elif node in self.reports and row and not row.leaving and node not in self.succeeded:
            self._forget_report(node)

    def replace(self, rows: Iterable[tuple[NodeRow, int]]) -> None:
        """All rows, as listed anew."""
        listed = {row.node: (row, revision) for row, revision in rows}
        for node in self.rows.keys() - listed.keys():
            self.drop(node)
        for row, revision in listed.values():
            self.put(row, revision)

    def drain(self, node: str, wanted: bool) -> None:
        """Whether somebody asked this node to go."""
        (self.wishes.drained.add if wanted else self.wishes.drained.discard)(node)
        if node in self.rows:
            self._sort(node)

    def _goes(self, row: NodeRow) -> bool:
        return bool(row.leaving) or row.state == "left" or row.node in self.wishes.drained

    def _sort(self, node: str) -> None:
        """Put the node where it belongs, by its row."""
        row, header = self.rows[node], self.header
        self.strays.discard(node)
        if header and row.token == header.token:
            self._sort_ours(row)
        elif node in self.inside:
            self._set_apart(node)
        elif node in self.placed:
            (self.going.add if self._goes(row) else self.going.discard)(node)
        elif row.state == "inside":
            self.strays.add(node)
        elif node not in self.apart:
            (self.newcomers.discard if self._goes(row) else self.newcomers.add)(node)

    def _sort_ours(self, row: NodeRow) -> None:
        node = row.node
        self._count_again = -math.inf
        for nodes in (self.placed, self.apart, self.inside, self.newcomers):
            nodes.discard(node)
        if row.state == "inside":
            self.inside.add(node)
        else:
            self._note_report(row)
            (self.dropped.add if row.state == "waiting" else self.dropped.discard)(node)
        if self._goes(row) and node not in self.succeeded:
            self.going.add(node)

    def _note_report(self, row: NodeRow) -> None:
        new = row.node not in self.reports
        self.reports[row.node] = row
        if new and row.outcome in FAILURES:
            self.failures.append(row.node)
        if row.outcome == "succeeded":
            self.succeeded.add(row.node)

    def _set_apart(self, node: str) -> None:
        for nodes in (self.placed, self.inside, self.going, self.newcomers):
            nodes.discard(node)
        self.apart.add(node)

    def _forget_report(self, node: str) -> None:
        """The node was lost after it had reported: nothing of it runs."""
        del self.reports[node]
        if node in self.failures:
            self.failures.remove(node)
        self.granted.pop(node, None)
        self._count_again = -math.inf
        self._set_apart(node)

    # ---- signs of life

    def remember(self, before: View) -> None:
        """What this node heard in an earlier term of its own."""
        self._sure, self._last = before._sure, before._last
        self._count_again = -math.inf
        if before.header and self.header and before.header.token == self.header.token:
            self.granted = before.granted

    def judge(self, beat: Beat, now: float, grant_until: float) -> bool:
        """Whether to grant a beat, while the leader's own grant lasts until `grant_until`."""
        if now >= grant_until:
            return False
        number, moment = self._last.get(beat.node, (0, now))
        if beat.confirmed and beat.confirmed == number:
            self._sure[beat.node] = moment
        self._last[beat.node] = (beat.number, now)
        self._sure.setdefault(beat.node, now)
        if beat.node in self.inside or beat.node in self.dropped:
            self._limit_inheritance(now)
        if beat.round < 0:
            return True
        header = self.header
        if not header or header.phase != "open" or beat.token != header.token:
            return False
        self.granted[beat.node] = now
        if not self._accounts_for(beat.node):
            self.blind_until = max(self.blind_until, now + self.settings.ttl)
        return True

    def _limit_inheritance(self, now: float) -> None:
        """A node of the round beats here, and so no more to the round's author, who could not go
        past a lease without it: it ended by now + ttl, and what it granted a ttl later.
        """
        end = now + 2 * self.settings.ttl
        self.blind_until = min(self.blind_until, end)
        self.inherited_until = min(self.inherited_until, end)

    def _accounts_for(self, node: str) -> bool:
        """Whether the node is of the round, as far as its row has told."""
        return any(node in nodes for nodes in (self.inside, self.placed, self.apart, self.reports))

    def heard_all_since(self, now: float) -> float:
        """Since when at the latest all nodes have beaten; -inf if one of the round never has.

        Counted anew now and then only: what it was a moment ago is too early, and so safe.
        """
        if now >= self._count_again:
            self._heard_all_since = self._count_beats(now)
            self._count_again = now + self.settings.interval / 16
        return self._heard_all_since

    def _count_beats(self, now: float) -> float:
        bound = now - FORGOTTEN_AFTER * self.settings.ttl
        for node in [node for node, moment in self._sure.items() if moment < bound]:
            if node not in self.rows:
                del self._sure[node]
        others = (self.placed | self.inside | self.apart) - {self.node}
        if others - self._sure.keys():
            return -math.inf
        return min(self._sure.values(), default=now)
