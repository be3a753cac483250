"""Holds what a leader remembers in its term, apart from the nodes' messages. Pure.

A Sight is a value, without a clock or I/O. Each event makes a new one, with which the leader
replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torshrun.rendezvous.restart import Hosts
from torshrun.rendezvous.rows import Header
from torshrun.rendezvous.settings import Settings


@dataclass(frozen=True, slots=True)
class Term:
    """States who leads, and by which rules."""

    settings: Settings
    node: str
    """The leader's own id."""
    fence: int = 0
    """The revision of this leader's election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The round as its leader sees it, and what it has seen before. All moments are by its own
    clock.
    """

    header: Header | None = None
    token: str | None = None
    """The round's, also while there is no header any more."""
    idle_since: float
    """Since when no round is open, as far as this leader knows."""
    listed_since_close: bool = False
    """True if all rows were listed since it is closing, so that all that entered it are known.

    News of nodes may be later than news of the header.
    """
    opened_at: float
    """Time at which the header's round was first seen."""
    blind_until: float
    """Time until which nodes of the round that nothing is known of may still run workers."""
    inherited_until: float
    """Time until which nodes of the round may run workers by another leader's grants."""
    enough_since: float = math.inf
    """Since when the next round could begin, or be larger than this one."""
    seated: frozenset[str] = frozenset()
    """The nodes that this leader gave places in this round."""
    invited: frozenset[str] = frozenset()
    """Newcomers that the round was closed for."""
    claimed: int = -1
    """The highest round that was ever spoken of."""
    forming: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The nodes of each round that this leader set out to form, by the round's token."""
    hosts: Hosts
    absent: Mapping[str, int] = field(default_factory=dict)
    """The row, by its sequence, of each node that did not enter the round it had a place in."""
    first_seen: Mapping[str, float] = field(default_factory=dict)
    """Times at which rounds of an earlier epoch, by token, and their leaders were first
    reported.
    """

    @classmethod
    def at_start(cls, settings: Settings, now: float) -> Sight:
        """Return the sight of a leader that has seen nothing yet."""
        hosts = Hosts(settings)
        return cls(idle_since=now, opened_at=now, blind_until=now, inherited_until=now, hosts=hosts)

    def with_header(self, header: Header | None, now: float) -> Sight:
        """Return the sight after the header became this one."""
        old, new = self.header, replace(self, header=header)
        if header is None:
            return replace(new, idle_since=now, enough_since=math.inf) if old else new
        new = new.with_round(header.number)
        if header.phase == "closing" and (not old or old.phase == "open"):
            new = replace(new, idle_since=now, listed_since_close=False)
        elif header.mending and not (old and old.mending and old.at_commit == header.at_commit):
            new = replace(new, idle_since=now)
        return new if header.token == self.token else new._with_token(header.token, now)

    def _with_token(self, token: str, now: float) -> Sight:
        """Return the sight at the beginning of another round."""
        forming = {key: nodes for key, nodes in self.forming.items() if key != token}
        return replace(
            self,
            token=token,
            opened_at=now,
            blind_until=now,
            inherited_until=now,
            enough_since=math.inf,
            seated=frozenset(self.forming.get(token, ())),
            invited=frozenset(),
            forming=forming,
        )

    def with_round(self, number: int) -> Sight:
        """Return the sight after somebody mentioned a round of this number."""
        return replace(self, claimed=number) if number > self.claimed else self

    def with_places(self, token: str, nodes: Iterable[str]) -> Sight:
        """Return the sight when this leader sets out to form a round of these nodes."""
        return replace(self, forming={**self.forming, token: tuple(nodes)})

    def with_enough(self, now: float) -> Sight:
        """Return the sight when there are enough nodes, now at the latest."""
        return replace(self, enough_since=now) if now < self.enough_since else self

    def without_enough(self) -> Sight:
        """Return the sight when there are too few nodes."""
        return self if self.enough_since == math.inf else replace(self, enough_since=math.inf)

    def with_absent(self, node: str, sequence: int) -> Sight:
        """Return the sight after the node with this row did not enter the round in time."""
        return replace(self, absent={**self.absent, node: sequence})

    def with_first_seen(self, names: Iterable[str], now: float) -> Sight:
        """Return the sight after these rounds and leaders of an earlier epoch were reported."""
        new = dict.fromkeys((name for name in names if name not in self.first_seen), now)
        return replace(self, first_seen={**self.first_seen, **new}) if new else self

    def with_loss(self, host: str, now: float) -> Sight:
        """Return the sight after a node of this host was lost to the round."""
        assert self.header is not None, "there is no round to be lost to"
        hosts = self.hosts.lose(host, self.header.number, now - self.opened_at, now)
        return self if hosts is self.hosts else replace(self, hosts=hosts)

    def with_stranger(self, until: float) -> Sight:
        """Return the sight after a node that this leader does not account for was granted a
        beat.
        """
        return replace(self, blind_until=max(self.blind_until, until))

    def with_bound(self, end: float) -> Sight:
        """Return the sight when no node of the round may run workers by others' grants after
        `end`.
        """
        if self.blind_until <= end and self.inherited_until <= end:
            return self
        blind, inherited = min(self.blind_until, end), min(self.inherited_until, end)
        return replace(self, blind_until=blind, inherited_until=inherited)
