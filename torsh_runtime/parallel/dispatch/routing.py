"""Which tokens go to which experts, and where these are: arithmetic on indices.

Each token is assigned to the `top_k` experts that score highest, so tokens · top_k assignments are
numbered by token and, of one token, by falling score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def highest(scores: NDArray[Any], top_k: int) -> Indices:
    """For each row (tokens, experts) the experts that score highest; of equals the first one."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :top_k]


def counted(chosen: Indices, experts: int) -> Indices:
    """(experts,): how often each was chosen; what is no expert is not counted."""
    flat = chosen.reshape(-1)
    return np.bincount(flat[(flat >= 0) & (flat < experts)], minlength=experts)


def capacity(factor: float, assignments: int, experts: int) -> int:
    """How many assignments an expert takes at most: `factor` times what it would get of so many
    if all got as much (Fedus et al., Switch Transformers, 2021), rounded up."""
    return math.ceil(factor * assignments / experts)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Of a rank's tokens."""

    places: Indices
    """(tokens, top_k): which row each assignment is among those that are sent, -1 if it is not.
    They lie by expert, and of one expert in their order."""
    order: Indices
    """(rows,): the number of each row's assignment."""
    counts: Indices
    """(experts,): how many rows each expert gets."""

    @classmethod
    def of(
        cls, chosen: Indices, experts: int, before: Indices | None = None, limit: int = 0
    ) -> Assignment:
        """`chosen`: (tokens, top_k), of which some may be no expert. before: how many assignments
        each expert has had when this rank's come; it takes no more than `limit`. None: it takes
        all."""
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
    """What ranks send each other."""

    sent: list[int]
    """How many rows go to each rank."""
    received: list[int]
    """How many come from each; of one rank they lie by expert."""
    order: Indices
    """(rows that came,): which of them come first if all lie by expert."""
    counts: list[int]
    """How many of them each of this rank's experts gets."""

    @classmethod
    def of(cls, counts: Indices, cuts: Sequence[int], rank: int) -> Exchange:
        """`counts`: (ranks, experts), what each rank sends. cuts: of the experts, for the ranks."""
        sent = [int(counts[rank, start:end].sum()) for start, end in pairwise(cuts)]
        own = counts[:, cuts[rank] : cuts[rank + 1]]
        experts = np.repeat(np.tile(np.arange(own.shape[1]), len(own)), own.reshape(-1))
        return cls(
            sent,
            own.sum(axis=1).tolist(),
            np.argsort(experts, kind="stable"),
            own.sum(axis=0).tolist(),
        )


def reverse(order: Indices) -> Indices:
    """Where each of the rows that `order` names has come."""
    return np.argsort(order)
