"""What the leader knows of the nodes. Pure: no clock and no I/O; each event costs O(1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torshrun.rendezvous.beats import Beat
from torshrun.rendezvous.restart import History, Hosts
from torshrun.rendezvous.roster import Roster, derive
from torshrun.rendezvous.rows import Header, NodeRow, SizeWanted, StopWanted
from torshrun.rendezvous.settings import Settings

FORGOTTEN_AFTER = 10.0
"""Times the ttl: a node that has not beaten for so long, and has no row, is none of ours."""


@dataclass(slots=True)
class Wishes:
    """What was asked for from outside."""

    size: SizeWanted | None = None
    stop: StopWanted | None = None
    drained: set[str] = field(default_factory=set)
    """Nodes that are to go."""


class View:
    """The nodes, the round and what was asked for, as one leader sees them in its term, by its own
    clock. What follows from the rows is derived anew after they have changed, see `roster`.
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
        self.idle_since = now
        """Since when no round is open, as far as this leader knows."""
        self.listed_since_close = False
        """Whether all rows were listed since it is closing, and so all that entered it are known:
        what is heard of nodes may be later than what is heard of the header."""
        self.claimed = -1
        """The highest round that was ever spoken of."""
        self.forming: dict[str, tuple[str, ...]] = {}
        """The nodes of each round that this leader set out to form, by the round's token."""
        self.hosts = Hosts(settings)
        self.summaries: dict[str, bytes] = {}
        """What each node that has a row told last."""
        self._absent: dict[str, int] = {}
        """The row, by its sequence, of each node that did not enter the round it had a place in."""
        self.first_seen: dict[str, float] = {}
        """When rounds of an earlier epoch, by token, and their leaders were first told of."""
        self.wishes = Wishes()
        self._token: str | None = None  # the round's, also while there is no header any more
        self.latest: dict[str, NodeRow] = {}
        """The last row of each node, also of those that are gone."""
        self._roster: Roster | None = None
        self._sure: dict[str, float] = {}
        """When a beat came of which the node knows that it was answered."""
        self._last: dict[str, tuple[int, float]] = {}
        self._heard_all_since = -math.inf
        self._count_again = -math.inf
        """When to count anew who has beaten: at once if the round has nodes not counted yet."""
        self._begin_round(now)

    # ---- what is derived

    @property
    def roster(self) -> Roster:
        """Where each node stands. O(nodes) after a change."""
        if self._roster is None:
            self._roster = derive(self.header, self.rows, self.seated, self.told, self.goes)
        return self._roster

    @property
    def limits(self) -> tuple[int, int]:
        """At least and at most how many nodes."""
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
        """Whether somebody is to go and the header does not say so yet."""
        told = self.header.drained if self.header else ()
        return any(node in self.rows and node not in told for node in self.wishes.drained)

    @property
    def misses_untold(self) -> bool:
        """Whether a node is absent, waits to read that, and the header does not say so."""
        missed = self.header.missed if self.header else ()
        return any(map(self.is_absent, self._absent.keys() - missed))

    def fenced_at(self, node: str) -> float:
        """When a node that is apart can run no workers any more."""
        last = self.told.get(node)
        if last and last.state != "inside":
            return -math.inf
        return max(self.granted.get(node, -math.inf) + self.settings.ttl, self.inherited_until)

    def host(self, node: str) -> str:
        """Where the node runs or ran, or its id if that is not known."""
        row = self.latest.get(node)
        return row.host if row and row.host else node

    def name(self, node: str) -> str:
        """The node as people know it."""
        row, host = self.latest.get(node), self.host(node)
        known_as = f" ({row.address})" if row and row.address not in ("", host) else ""
        return f"node {host}{known_as}"

    def goes(self, row: NodeRow) -> bool:
        """Whether the row's node leaves, or is to."""
        return bool(row.leaving) or row.state == "left" or row.node in self.wishes.drained

    def stays(self, node: str) -> bool:
        """Whether the node is there and may have a place in the next round."""
        row = self.rows.get(node)
        return bool(row and row.state in ("waiting", "reported") and not self.goes(row))

    def accounts_for(self, node: str) -> bool:
        """Whether the node is of the round, as far as this leader knows."""
        return node in self.told or node in self.seated

    # ---- the round

    def take_header(self, header: Header | None, now: float) -> None:
        """The header as it stands."""
        old, self.header = self.header, header
        self._changed()
        if header is None:
            if old:
                self.idle_since, self.enough_since = now, math.inf
            return
        self.claimed = max(self.claimed, header.number)
        if header.phase == "closing" and (not old or old.phase == "open"):
            self.idle_since = now
            self.listed_since_close = False
        if header.token != self._token:
            self._token = header.token
            self._begin_round(now)

    def _begin_round(self, now: float) -> None:
        self.opened_at = now
        """When the header's round was first seen."""
        self.blind_until = now
        """Until when nodes of the round that nothing is known of may still run workers."""
        self.inherited_until = now
        """Until when nodes of the round may run workers by another leader's grants."""
        self.enough_since = math.inf
        """Since when the next round could begin, or be larger than this one."""
        self.seated = frozenset(self.forming.pop(self._token or "", ()))
        """The nodes that this leader gave places in this round."""
        self.told: dict[str, NodeRow] = {}
        """What each node told last of this round, those that have reported in that order."""
        self.granted: dict[str, float] = {}
        """When a beat of this node was last granted."""
        self.invited: frozenset[str] = frozenset()
        """Newcomers that the round was closed for."""
        known = self.rows.keys() | self.seated
        self.latest = {node: row for node, row in self.latest.items() if node in known}
        for row in self.rows.values():
            self._note(row)

    # ---- rows

    def put(self, row: NodeRow, revision: int) -> None:
        """A row as it stands; one that the node had before stands for nothing."""
        latest, known = self.latest.get(row.node), self.rows.get(row.node)
        if latest and row.sequence < latest.sequence:
            return
        self.latest[row.node] = self.rows[row.node] = row
        if not known or (row.state == "waiting" and known.state != "waiting"):
            self.revisions[row.node] = revision
        self.claimed = max(self.claimed, row.round)
        self._note(row)
        self._changed()

    def _note(self, row: NodeRow) -> None:
        """What a row tells of the round. That a node's part has succeeded stands."""
        known = self.told.get(row.node)
        if row.token != self._token or (known and known.outcome == "succeeded"):
            return
        if known and known.state == "inside":
            del self.told[row.node]
        self.told[row.node] = row

    def drop(self, node: str) -> None:
        """The node's row is gone."""
        for known in (self.rows, self.revisions, self.summaries, self._sure):
            known.pop(node, None)
        self._changed()

    def drain(self, node: str, wanted: bool) -> None:
        """Whether somebody asked this node to go."""
        (self.wishes.drained.add if wanted else self.wishes.drained.discard)(node)
        self._changed()

    def _changed(self) -> None:
        self._roster, self._count_again = None, -math.inf

    def hears(self, node: str) -> bool:
        """Whether beats of the node reach this leader: one that is not heard may be of the past."""
        return node == self.node or node in self._sure

    def miss(self, node: str) -> None:
        """The node did not enter the round in time."""
        self._absent[node] = self.latest[node].sequence

    def is_absent(self, node: str) -> bool:
        """Whether the node has been missed, and has said nothing since."""
        row = self.rows.get(node)
        return row is not None and self._absent.get(node) == row.sequence

    # ---- signs of life

    def note_summary(self, node: str, summary: bytes) -> None:
        """What the node tells. It is kept while the node has a row."""
        if summary and node in self.rows:
            self.summaries[node] = summary
        else:
            self.summaries.pop(node, None)

    def answer_beat(self, beat: Beat, now: float, grant_until: float) -> bool:
        """Whether to grant a beat, while the leader's own grant lasts until `grant_until`."""
        if now >= grant_until:
            return False
        number, moment = self._last.get(beat.node, (0, now))
        if beat.confirmed and beat.confirmed == number:
            self._sure[beat.node] = moment
        self._last[beat.node] = (beat.number, now)
        self._sure.setdefault(beat.node, now)
        told = self.told.get(beat.node)
        if told and told.state in ("inside", "waiting"):
            self._limit_inheritance(now)
        if beat.round < 0:
            return True
        header = self.header
        if not header or header.phase != "open" or beat.token != header.token:
            return False
        self.granted[beat.node] = now
        if not self.accounts_for(beat.node):
            self.blind_until = max(self.blind_until, now + self.settings.ttl)
        return True

    def _limit_inheritance(self, now: float) -> None:
        """A node of the round beats here, and so no more to the round's author, who could not go
        past a lease without it: it ended by now + ttl, and what it granted a ttl later.
        """
        end = now + 2 * self.settings.ttl
        self.blind_until = min(self.blind_until, end)
        self.inherited_until = min(self.inherited_until, end)

    def heard_all_since(self, now: float) -> float:
        """Since when at the latest all nodes have beaten; -inf if one of the round never has. It is
        counted anew now and then: what it was a moment ago is too early, and so safe.
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
        roster = self.roster
        others = (roster.placed | roster.inside | roster.apart) - {self.node}
        if others - self._sure.keys():
            return -math.inf
        return min(self._sure.values(), default=now)
