"""Until when this node may run workers. Pure arithmetic on one node's monotonic clock."""

from __future__ import annotations

import math
from typing import NamedTuple

from torshrun.rendezvous.settings import GRANT, Settings
from torshrun.rendezvous.view import View

WARNING = 0.1
"""Part of the ttl before a grant's end at which the workers are stopped in an orderly way."""


class Term(NamedTuple):
    """A leader's time as one."""

    fence: int
    leader: str
    """Its node id."""


class Hearing:
    """What this node hears from leaders by beats, and so past the store."""

    def __init__(self) -> None:
        self.answers: dict[int, float] = {}
        """When the leader of each fence last answered a beat, while this node's lease lived on."""
        self.led: set[int] = set()
        """Fences of this node's own terms."""
        self.asked: set[str] = set()
        """The leaders that a beat may ever have reached."""
        self.number = 0
        """Counts the beats to the present leader."""
        self.confirmed = 0
        self._token = ""
        self._until = -math.inf

    def note(self, fence: int, number: int, now: float) -> None:
        """The leader of this fence has answered the beat of this number."""
        self.confirmed = number
        self.answers.pop(fence, None)
        self.answers[fence] = now
        while len(self.answers) > 4:
            del self.answers[next(iter(self.answers))]

    def grant(self, token: str, until: float) -> None:
        """It has granted this round until then."""
        if token != self._token:
            self._token, self._until = token, -math.inf
        self._until = max(self._until, until)

    def until(self, token: str) -> float:
        return self._until if token == self._token else -math.inf

    def turn(self) -> None:
        """Another leader has been elected."""
        self.number = self.confirmed = 0

    def end_of(self, fence: int, now: float, ttl: float) -> float:
        """When a leader who is none any more has acted as one at the latest, by its answers;
        inf: not known. It could not go on without this node if it knew this node, as they show.
        """
        if fence in self.led:
            return now
        answered = self.answers.get(fence, -math.inf)
        return answered + ttl if now - answered < 8 * ttl else math.inf


def leader_until(view: View, settings: Settings, lease_until: float, now: float) -> float:
    """Until when a leader may act as one: by its lease, or while all nodes hear each other.

    The latter for a bounded time only: somebody who never heard of these nodes waits for its end.
    And only in a round of its own, all of whose nodes count on it and it on them: of other terms
    a later leader need not even have heard.
    """
    header = view.header
    if lease_until - now > settings.ttl / 3 or header is None or header.fence != view.fence:
        return lease_until
    if view.roster.dropped:
        return lease_until
    contact = lease_until - GRANT * settings.ttl
    heard = view.heard_all_since(now) + GRANT * settings.ttl
    return max(lease_until, min(heard, contact + settings.outage_timeout))


def inherited_until(
    view: View, hearing: Hearing, last: Term | None, settings: Settings, now: float
) -> tuple[float, float]:
    """Until when nodes of the round that a new leader found may have grants from others.

    The first is for nodes that nothing is known of, the second for those that vanish later. `last`
    is the term before, if one is known: it need not be the author's of the header, who alone
    could go on past a lease.
    """
    header, ttl = view.header, settings.ttl
    if header is None:
        return now, now
    author = Term(header.fence, header.leader)
    end = _end_of(author, view, hearing, now)
    if end == math.inf:
        end = now + settings.outage_timeout + ttl
    end = max(now, end)
    leader_missing = header.leader_inside and header.leader not in view.rows
    if view.roster.unaccounted == 1 and leader_missing and last in (None, author):
        return end, end + ttl
    return end + ttl, end + ttl


def _end_of(author: Term, view: View, hearing: Hearing, now: float) -> float:
    """When the header's author has acted as the leader at the latest; inf: not known.

    Past its lease it needs beats of all nodes of its round, and each only counts when the next one
    says that it was answered. Only the first may count without that, if it came during the lease.
    """
    row = view.rows.get(author.leader)
    if row is not None and row.state == "left":  # it had ceased before it gave its term back
        return now
    ttl = view.settings.ttl
    known = hearing.end_of(author.fence, now, ttl)
    if view.node not in view.roster.inside | view.roster.dropped:
        return known
    return min(known, now + ttl if author.leader in hearing.asked else now)
