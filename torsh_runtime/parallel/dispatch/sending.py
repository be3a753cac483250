"""Tokens on their way to the ranks that have their experts, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torsh_runtime.parallel import regions
from torsh_runtime.parallel.dispatch.ranks import Ranks, Share
from torsh_runtime.parallel.dispatch.routing import (
    Assignment,
    Exchange,
    Groups,
    Indices,
    Limit,
    Remark,
    counted,
    reverse,
)
from torsh_runtime.parallel.dispatch.rows import Rows
from torsh_runtime.parallel.operations import is_tensor

_BY_PROCESSOR = ("cpu",)
"""Kinds of devices for whose tokens the processor computes routes, with numpy."""

Compute = Callable[[Any, Groups], Any]
"""(rows, which of them each of this rank's experts gets) -> what the experts make of the rows,
which lie by expert."""


def is_routed_there(tokens: Any) -> bool:
    """Return whether routes are computed where the tokens are, and not by the processor."""
    return is_tensor(tokens) and tokens.device.type not in _BY_PROCESSOR


def mixed(
    ranks: Ranks,
    cuts: Sequence[int],
    tokens: Any,
    chosen: Any,
    weights: Any,
    compute: Compute,
    limit: Limit | None = None,
    remark: Remark | None = None,
) -> Any:
    """Return for each of this rank's tokens (tokens, features) the weighted sum of its experts'
    outputs.

    cuts: of the experts, for the ranks that have them. chosen, weights: (tokens, top_k); for what
    is no expert there are zeros. `chosen` is an array, or a tensor if is_routed_there(tokens), with
    which `remark` may say something. All ranks of the experts' axis call it. Raises ConfigError on
    all of them where those that ought to have the same tokens have others.
    """
    share = ranks.share_of(len(chosen))
    if is_tensor(chosen):
        from torsh_runtime.parallel.dispatch import device  # which loads torch

        plan = device.planned(ranks, cuts, chosen, share, limit, remark)
    else:
        plan = _planned(ranks, cuts, chosen, share, limit)
    found = _by_experts(ranks, share.part(tokens), *plan, compute)
    return share.whole((found * share.part(weights).reshape(*found.shape[:2], 1)).sum(1))


def _planned(
    ranks: Ranks, cuts: Sequence[int], chosen: Indices, share: Share, limit: Limit | None
) -> tuple[Assignment, Exchange]:
    """Return where the tokens of this rank's share go, and what ranks send each other."""
    own = chosen[share.start : share.end]
    if limit is None:
        assignment = Assignment.of(own, cuts[-1])
    else:
        before = counted(chosen[: share.start], cuts[-1])
        assignment = Assignment.of(own, cuts[-1], limit.before + before, limit.most)
    counts = ranks.counts_of_all(assignment.counts, chosen)
    return assignment, Exchange.of(counts, cuts, ranks.experts.rank)


def _by_experts(
    ranks: Ranks, tokens: Any, assignment: Assignment, exchange: Exchange, compute: Compute
) -> Any:
    """Return the outputs of each token's experts: (tokens, top_k, features)."""
    group, places, has_gaps = ranks.experts, assignment.places, assignment.has_gaps
    by_token = assignment.order[:, None] // max(places.shape[1], 1)
    sent = regions.applied(tokens, Rows(by_token, places, has_gaps))
    came = regions.all_to_all(sent, group, exchange.sent, exchange.received)
    there, back = exchange.order[:, None], reverse(exchange.order)[:, None]
    results = compute(regions.applied(came, Rows(there, back, False)), exchange.groups)
    returned = regions.applied(results, Rows(back, there, False))
    own = regions.all_to_all(returned, group, exchange.received, exchange.sent)
    order = assignment.order[:, None]
    found = regions.applied(own, Rows(places.reshape(-1, 1), order, has_gaps))
    return found.reshape(*places.shape, tokens.shape[-1])
