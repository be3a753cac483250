"""Decides which rank keeps which part of a commit, from the pieces that the ranks report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torsh_runtime.checkpoint.plan import Held, share_out
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.checkpoint.writer import FileLayout


@dataclass(frozen=True)
class CommitPlan:
    """Describes one rank's part of a commit.

    The ranks of a node together keep everything they have. What no other node has is also kept by
    ranks of the next node, in a ring, so that any one node can be lost.
    """

    common: FileLayout
    """Pieces that other nodes have, too."""
    alone: FileLayout
    """Pieces that only this node has."""
    is_copied: bool
    """True if any node has pieces that no other node has. Each rank then gives a copy of its
    `alone` to another rank, even if that has only plain values."""
    keeper: int
    """The rank that keeps this rank's copy."""
    copies: tuple[tuple[int, FileLayout], ...]
    """The ranks whose copies this rank keeps, and the copies' layouts."""
    num_tensors: int
    """Number of tensors of the whole state."""


def plan_commit(held: Sequence[Sequence[Held]], nodes: Sequence[str], rank: int) -> CommitPlan:
    """Plan a commit for `rank`, given each rank's pieces and each rank's node."""
    order = list(dict.fromkeys(nodes))
    members = {node: [r for r, each in enumerate(nodes) if each == node] for node in order}
    where: dict[Held, set[str]] = {}
    for node, own in zip(nodes, held, strict=True):
        for each in own:
            where.setdefault(each, set()).add(node)
    place = order.index(nodes[rank])
    here = members[order[place]]
    before, behind = members[order[place - 1]], members[order[(place + 1) % len(order)]]
    shares = _shares(held, here) | _shares(held, before)
    is_copied = len(order) > 1 and any(len(each) == 1 for each in where.values())

    def alone(other: int) -> FileLayout:
        share = [each for each in shares[other] if len(where[each]) == 1]
        return FileLayout.of(other, share if is_copied else [], "alone")

    at, mine = here.index(rank), alone(rank)
    copied = before[at :: len(here)] if is_copied else []
    return CommitPlan(
        FileLayout.of(rank, [each for each in shares[rank] if each not in mine.starts], "common"),
        mine,
        is_copied,
        behind[at % len(behind)],
        tuple((other, alone(other)) for other in copied),
        len({each.name for each in where}),
    )


def _shares(held: Sequence[Sequence[Held]], ranks: Sequence[int]) -> dict[int, list[Held]]:
    shares = share_out([held[rank] for rank in ranks], ITEMSIZES)
    return dict(zip(ranks, shares, strict=True))
