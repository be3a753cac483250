"""Computes which tokens go to which experts, and their positions: arithmetic on indices.

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
class Assignment:
    """Assigns a rank's tokens to experts."""

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
    order: Indices
    """(rows that came,): which of them come first if all lie by expert."""
    counts: list[int]
    """Number of received rows for each of this rank's experts."""

    @classmethod
    def of(cls, counts: Indices, cuts: Sequence[int], rank: int) -> Exchange:
        """Plan the exchange. `counts`: (ranks, experts), what each rank sends. cuts: the first
        expert of each rank, and the end."""
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
    """Return the position of each of the rows that `order` names."""
    return np.argsort(order)
