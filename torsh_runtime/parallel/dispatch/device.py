"""Computes on the tokens' device which of torch's tokens go to which experts.

The results are those of routing.py. The processor waits for the device once in a layer: for the
counts of rows that ranks send each other, and for what they say of their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.integrations.torch.compiling import leave_alone
from torsh_runtime.parallel.dispatch.ranks import Ranks, Share
from torsh_runtime.parallel.dispatch.routing import Assignment, Exchange, Indices, Limit, Remark

_FACTOR = 0x9E3779B1
"""An odd number, by which the places of tokens are mixed."""


def highest(scores: Tensor, top_k: int) -> Tensor:
    """Return for each row of (tokens, experts) the experts that score highest; of equals the
    first one."""
    return scores.detach().sort(dim=-1, descending=True, stable=True).indices[:, :top_k]


def counted(chosen: Tensor, experts: int) -> Tensor:
    """Return how often each expert was chosen, (experts,). Numbers that are no experts are
    ignored."""
    flat = _known(chosen, experts)
    return flat.new_zeros(experts + 1).scatter_add_(0, flat, torch.ones_like(flat))[:experts]


def gathered(own: Tensor, group: ProcessGroup) -> Tensor:
    """Return the numbers of all ranks, with a row for each rank, on the device."""
    everyone = own.new_empty((group.world_size, len(own)))
    group.all_gather_into_tensor(everyone, own)
    return everyone


@leave_alone
def planned(
    ranks: Ranks,
    cuts: Sequence[int],
    chosen: Tensor,
    share: Share,
    limit: Limit | None,
    remark: Remark | None,
) -> tuple[Assignment, Exchange]:
    """Return where the tokens of this rank's share go, and what ranks send each other.

    Raises ConfigError on all ranks of the experts' axis if ranks that ought to have the same tokens
    have chosen different experts for them, and calls `remark.differ` on all of them.
    """
    own, experts = chosen[share.start : share.end], cuts[-1]
    taken = counts = counted(own, experts)
    if limit is not None:
        limit = Limit(limit.before + counted(chosen[: share.start], experts), limit.most)
        taken = torch.minimum(counts, (limit.most - limit.before).clamp(min=0))
    told = gathered(_told(ranks, taken, chosen, remark), ranks.experts)
    here = OnHost(told)
    places, order = _ordered(own, counts, limit)
    every = here.array()
    if remark is not None and ((every[:, -1] != remark.number).any() or not remark.number):
        remark.differ()
    rows = ranks.checked(every[:, :-1], experts)
    mine = slice(*cuts[ranks.experts.rank : ranks.experts.rank + 2])
    came = _by_expert(told[:, mine], int(rows[:, mine].sum()))
    ends = told[:, mine].sum(0).cumsum(0).to(torch.int32)
    exchange = Exchange.of(rows, cuts, ranks.experts.rank, came, ends)
    sent = sum(exchange.sent)
    return Assignment(places, order[:sent], taken, places.numel() != sent), exchange


def _told(ranks: Ranks, counts: Tensor, chosen: Tensor, remark: Remark | None) -> Tensor:
    """Return what this rank says: the counts of rows that it sends to each expert, if other ranks
    have the same tokens a note of these, and a remark."""
    notes = [counts]
    if ranks.copies is not None:
        # fill kernels, as a copy from the host's memory would wait for the device
        notes += [counts.new_full((1,), each) for each in (ranks.copies.ranks[0], len(chosen))]
        notes.append(_mixed(chosen))
    return torch.cat([*notes, counts.new_full((1,), 0 if remark is None else remark.number)])


def _mixed(chosen: Tensor) -> Tensor:
    """Return a number that differs where different experts were chosen."""
    flat = chosen.reshape(-1)
    factors = torch.arange(1, 2 * flat.numel(), 2, device=flat.device) * _FACTOR
    return ((flat + 1) * factors).sum()[None]


def _ordered(chosen: Tensor, counts: Tensor, limit: Limit | None) -> tuple[Tensor, Tensor]:
    """Return `places` and `order` of an Assignment, the latter with more rows than are sent."""
    flat = _known(chosen, len(counts))
    by_expert = flat.argsort(stable=True)
    expert, rows = flat[by_expert], torch.arange(len(flat), device=flat.device)
    is_sent = expert < len(counts)
    if limit is not None:
        one = expert.clamp(max=len(counts) - 1)
        is_sent &= rows - (counts.cumsum(0) - counts)[one] + limit.before[one] < limit.most
    row = is_sent.cumsum(0) - 1
    places = torch.empty_like(flat).scatter_(0, by_expert, row.where(is_sent, -1))
    order = flat.new_zeros(len(flat) + 1)
    order.scatter_(0, row.where(is_sent, len(flat)), by_expert)
    return places.reshape(chosen.shape), order[:-1]


def _by_expert(came: Tensor, rows: int) -> Tensor:
    """Return which rows come first if all lie by expert. came: (ranks, own experts), the rows that
    each rank sends, which lie by expert."""
    numbers = torch.arange(came.shape[1], device=came.device).repeat(len(came))
    return numbers.repeat_interleave(came.reshape(-1), output_size=rows).argsort(stable=True)


def _known(chosen: Tensor, experts: int) -> Tensor:
    """Return the experts of all assignments; `experts` is no expert."""
    flat = chosen.reshape(-1)
    return flat.where((flat >= 0) & (flat < experts), experts)


class OnHost:
    """Copies numbers into the host's memory while the device goes on."""

    def __init__(self, numbers: Tensor) -> None:
        """Begin to copy."""
        self._event: Any = None
        self._numbers = numbers
        if numbers.is_cuda:
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers = pinned.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.current_stream(numbers.device).record_event()

    def array(self) -> Indices:
        """Wait for the numbers and return them."""
        if self._event is not None:
            self._event.synchronize()
        found: Indices = np.asarray(self._numbers)
        return found
