"""Collects what is to be judged of a failed round, and what follows at once from it. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torshrun.failure.rank_report import RankReport, Silent
from torshrun.failure.trails import NOTHING, Concluded

MESSAGES = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"})
"""Calls that are, or may be, messages between two ranks."""
MOST_OPERATIONS = 64
"""Operations of groups, the furthest ones, for which it is looked who has not entered them."""

MOST_KNOTS = 64
"""Ranks of a circle for which it is looked whether there are others without them."""


@dataclass(frozen=True)
class Incident:
    """Holds what is to be judged, and derives what follows at once from it."""

    witnesses: tuple[RankReport, ...]
    silent: tuple[Silent, ...]
    hang: str
    recorded: Concluded = NOTHING
    """Conclusions that the recordings of the ranks' operations prove."""

    @cached_property
    def by_rank(self) -> Mapping[int, RankReport]:
        return {each.rank: each for each in self.witnesses}

    @cached_property
    def failed(self) -> list[RankReport]:
        return [each for each in self.witnesses if each.end == "failed"]

    @cached_property
    def own(self) -> list[RankReport]:
        """Return the ranks whose failures are their own."""
        return [each for each in self.witnesses if each.is_own]

    @cached_property
    def followers(self) -> list[RankReport]:
        """Return the ranks that failed and blame another."""
        return [each for each in self.failed if each.blame]

    @cached_property
    def waiting(self) -> list[RankReport]:
        """Return the ranks that were in a collective, or whose wait in one had timed out."""
        return [each for each in self.witnesses if each.end != "done" and call_of(each)]

    @cached_property
    def away(self) -> list[RankReport]:
        """Return the ranks that ran and were outside of any collective."""
        return [
            each
            for each in self.witnesses
            if each.end == "stopped" and each.standing and not each.standing.call
        ]

    @cached_property
    def edges(self) -> Mapping[int, set[int]]:
        """Return the ranks that each rank points at.

        A rank that was lost to another node because torshrun stopped it there is not the cause; on
        its own node no rank was stopped before that one failed.
        """
        found: dict[int, set[int]] = defaultdict(set)
        stopped = {each.rank: each.node for each in self.witnesses if each.end == "stopped"}
        for each in self.followers:
            if each.blame and not each.blame.weak:
                whom = {*each.blame.ranks} - {each.rank}
                if each.blame.how == "lost":
                    whom = {rank for rank in whom if stopped.get(rank, each.node) == each.node}
                found[each.rank] |= whom
        for rank, behind in _pointed_at_by_collectives(self.witnesses):
            found[rank] |= behind
        for each in self.witnesses:
            if each.standing and not each.is_own:
                found[each.rank] |= {each.standing.awaited, each.holder} - {each.rank, -1}
        return {rank: whom for rank, whom in found.items() if whom}

    @cached_property
    def ends(self) -> set[int]:
        """Return where the chains of blame end: not at ranks that lost a peer themselves and do not
        say which. All ranks of a group may raise what the first one of them found, so the rank that
        is named may name itself.
        """
        named = [each for each in self.followers if each.blame and each.rank in each.blame.ranks]
        lost = {each.rank for each in self.followers} - {each.rank for each in named}
        return self.named - self.edges.keys() - lost

    @cached_property
    def circles(self) -> set[int]:
        """Return the ranks that point at each other, directly or over others."""
        return _on_circles(self.edges)

    @cached_property
    def knots(self) -> set[int]:
        """Return the ranks that are on all circles. A rank that alone went somewhere else, and
        waits there for others, is the only one.
        """
        return {
            rank
            for rank in _one_circle(self.edges, self.circles)[:MOST_KNOTS]
            if not _on_circles({each: whom for each, whom in self.edges.items() if each != rank})
        }

    @cached_property
    def named(self) -> set[int]:
        """Return the ranks that another rank points at."""
        return set().union(*self.edges.values())

    def of(self, ranks: Collection[int]) -> list[RankReport]:
        """Return what is known of these ranks, in their order."""
        return [self.by_rank[rank] for rank in sorted(ranks) if rank in self.by_rank]

    def do_the_same(self, ranks: Collection[int]) -> bool:
        """Return whether all were at one place in the program, after the same calls."""
        found = [each.standing for each in self.of(ranks)]
        entered = [standing.entered for standing in found if standing]
        places = {standing.place for standing in found if standing}
        return len(places) == 1 and all(each == entered[0] for each in entered)

    def claims(self, how: str) -> list[RankReport]:
        """Return the ranks that blame others in the manner `how`."""
        return [each for each in self.followers if each.blame and each.blame.how == how]


def call_of(witness: RankReport) -> str:
    """Return the name of the collective that it waited in; "" is none."""
    if witness.standing and witness.standing.call:
        return witness.standing.call
    return witness.blame.op if witness.blame else ""


def comparable(call: str) -> str:
    """Return the part of a call that all ranks give alike; "" if that is nothing."""
    if call.startswith(("all_to_all", *MESSAGES)):
        return ""
    return re.sub(r"\d+ x [\w.]+(?:\[[^\]]*\])?(?:, )?", "", call)


def _pointed_at_by_collectives(witnesses: Sequence[RankReport]) -> Iterable[tuple[int, set[int]]]:
    """Yield each rank in an operation of a group, with the ranks of that group that have not
    entered it, at which it points.
    """
    stands = [(each.rank, each.standing) for each in witnesses if each.standing]
    inside = [
        (rank, at)
        for rank, at in stands
        if at.full and at.awaited < 0 and at.group >= 0 and at.sequence
    ]
    furthest = sorted({(at.sequence, at.group) for _, at in inside})[-MOST_OPERATIONS:]
    behind = {
        (sequence, group): {
            rank for rank, at in stands if at.entered.get(group, sequence) < sequence
        }
        for sequence, group in furthest
    }
    for rank, at in inside:
        yield rank, behind.get((at.sequence, at.group), set())


def _on_circles(edges: Mapping[int, set[int]]) -> set[int]:
    """Return the ranks that remain when those that nobody points at, and those that point at
    nobody, are removed again and again.
    """
    pointers = Counter(rank for whom in edges.values() for rank in whom)
    left = set(edges)
    free = [rank for rank in left if not pointers[rank]]
    while free:
        rank = free.pop()
        left.discard(rank)
        for other in edges[rank]:
            pointers[other] -= 1
            if not pointers[other] and other in left:
                free.append(other)
    return {rank for rank in left if edges[rank] & left}


def _one_circle(edges: Mapping[int, set[int]], circles: Collection[int]) -> list[int]:
    """Return the ranks of any one circle, of those that point at each other."""
    row: list[int] = []
    rank = min(circles, default=-1)
    while rank in circles and rank not in row:
        row.append(rank)
        rank = min(edges[rank] & {*circles}, default=-1)
    return row[row.index(rank) :] if rank in row else []
