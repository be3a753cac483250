"""Tokens on their way to the ranks that have their experts, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.parallel import regions
from torsh_runtime.parallel.dispatch.ranks import Ranks
from torsh_runtime.parallel.dispatch.routing import Assignment, Exchange, Indices, counted, reverse
from torsh_runtime.parallel.dispatch.rows import Rows

Compute = Callable[[Any, list[int]], Any]
"""(rows, how many of them each of this rank's experts gets) -> what the experts make of the rows,
which lie by expert."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits how many assignments an expert takes."""

    before: Indices
    """(experts,): how many it has had when this rank's come."""
    most: int


def mixed(
    ranks: Ranks,
    cuts: Sequence[int],
    tokens: Any,
    chosen: Indices,
    weights: Any,
    compute: Compute,
    limit: Limit | None = None,
) -> Any:
    """Return for each of this rank's tokens (tokens, features) the weighted sum of its experts'
    outputs.

    cuts: of the experts, for the ranks that have them. chosen, weights: (tokens, top_k); for what
    is no expert there are zeros. All ranks of the experts' axis call it. Raises ConfigError on all
    of them where those that ought to have the same tokens have others.
    """
    share = ranks.share_of(len(chosen))
    own = chosen[share.start : share.end]
    if limit is None:
        assignment = Assignment.of(own, cuts[-1])
    else:
        before = counted(chosen[: share.start], cuts[-1])
        assignment = Assignment.of(own, cuts[-1], limit.before + before, limit.most)
    counts = ranks.counts_of_all(assignment.counts, chosen)
    found = _by_experts(ranks, cuts, share.part(tokens), assignment, counts, compute)
    return share.whole((found * share.part(weights).reshape(*own.shape, 1)).sum(1))


def _by_experts(
    ranks: Ranks,
    cuts: Sequence[int],
    tokens: Any,
    assignment: Assignment,
    counts: Indices,
    compute: Compute,
) -> Any:
    """Return the outputs of each token's experts: (tokens, top_k, features). counts: of all
    ranks' assignments, (ranks, experts)."""
    group, places = ranks.experts, assignment.places
    by_token = assignment.order[:, None] // max(places.shape[1], 1)
    sent = regions.applied(tokens, Rows(by_token, places))
    exchange = Exchange.of(counts, cuts, group.rank)
    came = regions.all_to_all(sent, group, exchange.sent, exchange.received)
    there, back = exchange.order[:, None], reverse(exchange.order)[:, None]
    results = compute(regions.applied(came, Rows(there, back)), exchange.counts)
    returned = regions.applied(results, Rows(back, there))
    own = regions.all_to_all(returned, group, exchange.received, exchange.sent)
    found = regions.applied(own, Rows(places.reshape(-1, 1), assignment.order[:, None]))
    return found.reshape(*places.shape, tokens.shape[-1])
