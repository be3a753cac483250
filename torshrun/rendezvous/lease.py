"""Computes until when this node may run workers, by the node's monotonic clock. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.rows import Header
from torshrun.rendezvous.settings import GRANT

WARNING = 0.1
"""Part of the ttl before a grant's end at which the workers are stopped in an orderly way."""


def leader_until(view: ClusterState, lease_until: float, now: float) -> float:
    """Return until when a leader may act as one: by its lease, or while all nodes hear each other.

    The latter holds for a bounded time only: a leader that never heard of these nodes waits for its
    end. And it holds only in a round of its own, in which all nodes rely on it and it on them: a
    later leader need not even have heard of other terms.
    """
    header, settings = view.header, view.settings
    if lease_until - now > settings.ttl / 3 or header is None or header.fence != view.fence:
        return lease_until
    if view.roster.dropped:
        return lease_until
    contact = lease_until - GRANT * settings.ttl
    heard = view.heard_all_since(now) + GRANT * settings.ttl
    return max(lease_until, min(heard, contact + settings.outage_timeout))


def inherited_until(
    view: ClusterState, answers: Mapping[int, float], last: int, now: float
) -> tuple[float, float]:
    """Return until when nodes of the round that a new leader found may have grants from others.

    The first result is for nodes that nothing is known of, the second for those that vanish later.
    `answers` says when the leader of each fence last answered this node. `last` is the fence of the
    term before, 0 if none is known: it need not be the header's, whose author alone could continue
    past a lease.
    """
    header, ttl = view.header, view.settings.ttl
    if header is None:
        return now, now
    end = _end_of(header, view, answers, now)
    if end == math.inf:
        end = now + view.settings.outage_timeout + ttl
    end = max(now, end)
    leader_missing = header.leader_inside and header.leader not in view.rows
    if view.roster.unaccounted == 1 and leader_missing and last in (0, header.fence):
        return end, end + ttl
    return end + ttl, end + ttl


def _end_of(header: Header, view: ClusterState, answers: Mapping[int, float], now: float) -> float:
    """Return the latest time at which the header's author has acted as the leader; inf if unknown.

    It could not continue without this node if it knew this node, as its answers show. Past its
    lease it needs beats of all nodes of its round, and each only counts when the next one says that
    it was answered. Only the first may count without that, if it came during the lease.
    """
    row = view.rows.get(header.leader)
    has_left = row is not None and row.state == "left"  # it had ceased before it gave its term back
    if has_left or header.leader == view.node:
        return now
    ttl = view.settings.ttl
    answered = answers.get(header.fence, -math.inf)
    known = answered + ttl if now - answered < 8 * ttl else math.inf
    if view.node not in view.roster.inside | view.roster.dropped:
        return known
    return min(known, now + ttl)
