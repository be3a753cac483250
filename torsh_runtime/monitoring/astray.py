"""Finds the one rank that has made other calls than all others, where these make the same in all
groups.

A group of two ranks that disagree does not tell which one is wrong. Ranks that run one program, and
are in groups of the same sizes, make the same calls in the same order, each in its own groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from torsh_runtime.monitoring.layout import MESSAGES, NO_OPERATIONS, Operation

SIZED = ("all_reduce", "reduce", "broadcast", "reduce_scatter")
"""Operations whose sizes have to be the same on all ranks."""
_FEWEST = 3
"""The smallest number of ranks: of two nobody knows which one is wrong."""
_MOST = 64
"""The largest number of ranks that are compared each with each."""


class Astray(NamedTuple):
    """The rank, and the calls in which it differs from the others."""

    rank: int
    called: Operation
    """The first call in which the rank differs."""
    instead_of: Operation
    """The call of others in its place, if possible by a rank of one of its groups."""
    others: tuple[int, ...]
    """The ranks that it is compared with."""


def astray(records: Mapping[int, Sequence[Operation]]) -> Astray | None:
    """Return the rank that has gone astray. None if there is none, or it is not clear which one it
    is."""
    alike: dict[object, dict[int, list[Operation]]] = defaultdict(dict)
    for rank, held in records.items():
        calls = [each for each in _contiguous(held) if each.ranks > 1]
        if calls:
            alike[_sizes(held)][rank] = calls
    for rows in alike.values():
        if _FEWEST <= len(rows) <= _MOST and (found := _odd_one(_aligned(rows), records)):
            return found
    return None


def _contiguous(held: Sequence[Operation]) -> list[Operation]:
    """Return the last collectives of a rank, since the last gap in its record."""
    gaps = [i + 1 for i, (a, b) in enumerate(pairwise(held)) if b.number != a.number + 1]
    return [
        each
        for each in held[max(gaps, default=0) :]
        if each.operation not in (*MESSAGES, *NO_OPERATIONS)
    ]


def _sizes(held: Sequence[Operation]) -> tuple[int, ...]:
    """Return the sizes of the groups that a rank is in."""
    sizes = {each.group: each.ranks for each in held if each.ranks > 1}
    return tuple(sorted(sizes.values()))


def _aligned(rows: Mapping[int, Sequence[Operation]]) -> Mapping[int, Sequence[Operation]]:
    """Return the calls of each rank, from the first one that all of them have made together."""
    turns = [{(each.group, each.sequence) for each in calls} for calls in rows.values()]
    common = set.intersection(*turns)
    starts = {
        rank: next((i for i, each in enumerate(calls) if (each.group, each.sequence) in common), -1)
        for rank, calls in rows.items()
    }
    firsts = {
        (rows[rank][at].group, rows[rank][at].sequence) for rank, at in starts.items() if at >= 0
    }
    if not common or len(firsts) != 1:
        return {}
    return {rank: rows[rank][at:] for rank, at in starts.items()}


def _odd_one(
    rows: Mapping[int, Sequence[Operation]], records: Mapping[int, Sequence[Operation]]
) -> Astray | None:
    """Return the only rank that differs from all others, while these do not differ from each
    other."""
    forms = {rank: [form(each) for each in calls] for rank, calls in rows.items()}
    parted = {
        (one, other): at
        for one, other in combinations(sorted(forms), 2)
        if (at := _parting(forms[one], forms[other])) is not None
    }
    odd = {rank for rank in forms if parted and all(rank in pair for pair in parted)}
    if len(odd) != 1 or len(parted) < _FEWEST - 1:
        return None
    (rank,) = odd
    at = min(parted.values())
    others = tuple(sorted({*rows} - odd))
    theirs = [rows[other][at] for other in others if len(rows[other]) > at]
    own_groups = {each.group for each in records[rank]}
    shared = (each for each in theirs if each.group in own_groups)
    return Astray(rank, rows[rank][at], next(shared, theirs[0]), others)


def _parting(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Return the first place where they differ, or None if one is how the other begins."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (mine, its) in pairs if mine != its), None)


def form(each: Operation) -> object:
    """Return what a call has in common with those of the same place in other groups."""
    same = each.operation, each.dtype, each.ranks
    return (*same, each.reduction, each.elements) if each.operation in SIZED else same
