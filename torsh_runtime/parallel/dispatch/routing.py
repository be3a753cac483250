"""Computes which tokens go to which experts, and their positions: arithmetic on indices.

Each token is assigned to the `top_k` experts that score highest, so tokens · top_k assignments are
numbered by token and, of one token, by falling score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def highest(scores: NDArray[Any], top_k: int) -> Indices:
    """Return for each row of (tokens, experts) the experts that score highest; of equals the
    first one."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :top_k]


def counted(chosen: Indices, experts: int) -> Indices:
    """Return how often each expert was chosen, (experts,). Numbers that are no experts are
    ignored."""
    flat = chosen.reshape(-1)
    return np.bincount(flat[(flat >= 0) & (flat < experts)], minlength=experts)


def capacity(factor: float, assignments: int, experts: int) -> int:
    """Return how many assignments an expert takes at most: `factor` times what it would get of
    so many if all got as much (Fedus et al., Switch Transformers, 2021), rounded up."""
    return math.ceil(factor * assignments / experts)


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits how many assignments an expert takes."""

    before: Any
    """(experts,): how many it has had when this rank's come."""
    most: Any
    """A number, or a tensor of one."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Says something that the ranks of the experts' axis have to have in common."""

    number: int
    """0: this rank cannot go on."""
    differ: Callable[[], object]
    """Raises an error. All ranks call it if their numbers differ, or if they cannot go on."""


class Groups(NamedTuple):
    """Tells which rows that lie by expert each of this rank's experts has."""

    counts: list[int]
    ends: Any = None
    """(own experts,): the row after each expert's last one, in a tensor on the tokens' device in
    32 bits. None: the tokens are not routed there."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Assigns a rank's tokens to experts. Indices are in arrays of numpy, or in tensors where the
    tokens are."""

    places: Any
    """(tokens, top_k): which row each assignment is among those that are sent, -1 if it is not.
    They lie by expert, and of one expert in their order."""
    order: Any
    """(rows,): the number of each row's assignment."""
    counts: Any
    """(experts,): how many rows each expert gets."""
    has_gaps: bool = True
    """False: all assignments are sent."""

    @classmethod
    def of(
        cls, chosen: Indices, experts: int, before: Indices | None = None, limit: int = 0
    ) -> Assignment:
        """Assign tokens by `chosen`: (tokens, top_k), of which some may be no expert. before:
        how many assignments each expert has had before this rank's; it takes no more than
        `limit`. None: it takes all."""
        flat = chosen.reshape(-1)
        order = np.argsort(flat, kind="stable")
        order = order[(flat[order] >= 0) & (flat[order] < experts)]
        counts = np.bincount(flat[order], minlength=experts)
        if before is not None:
            starts = np.cumsum(counts) - counts
            expert = flat[order]
            order = order[np.arange(order.size) - starts[expert] + before[expert] < limit]
            counts = np.bincount(flat[order], minlength=experts)
        places = np.full(flat.size, -1)
        places[order] = np.arange(order.size)
        return cls(places.reshape(chosen.shape), order, counts)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Describes what ranks send each other."""

    sent: list[int]
    """Number of rows that go to each rank."""
    received: list[int]
    """Number of rows that come from each rank; those of one rank are sorted by expert."""
    order: Any
    """(rows that came,): which of them come first if all lie by expert."""
    groups: Groups
    """Received rows for each of this rank's experts."""

    @classmethod
    def of(
        cls, counts: Indices, cuts: Sequence[int], rank: int, order: Any = None, ends: Any = None
    ) -> Exchange:
        """Plan the exchange. `counts`: (ranks, experts), what each rank sends. cuts: the first
        expert of each rank, and the end. order, ends: where the tokens are, if they are routed
        there."""
        sent = [int(counts[rank, start:end].sum()) for start, end in pairwise(cuts)]
        own = counts[:, cuts[rank] : cuts[rank + 1]]
        if order is None:
            experts = np.repeat(np.tile(np.arange(own.shape[1]), len(own)), own.reshape(-1))
            order = np.argsort(experts, kind="stable")
        groups = Groups(own.sum(axis=0).tolist(), ends)
        return cls(sent, own.sum(axis=1).tolist(), order, groups)


def reverse(order: Any) -> Any:
    """Return the position of each of the rows that `order` names."""
    return order.argsort()
