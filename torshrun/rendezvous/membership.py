"""Derives the state of each node in the round from the nodes' rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torshrun.rendezvous.rows import Header, NodeRow

if TYPE_CHECKING:
    from torshrun.failure.root_cause import RootCause

FAILURES = ("failed", "hung")


@dataclass(slots=True)
class Membership:
    """A node of the round is *placed* until it has entered, then *inside*, and in the end has
    *reported*; or it is *apart*, if its row vanished or speaks of the round no more.
    """

    placed: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    reports: dict[str, NodeRow] = field(default_factory=dict)
    """In the order in which they came."""
    apart: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    """Nodes that reported failures, in the order of the reports."""
    succeeded: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    """Nodes that lost touch with the round: none of their workers runs any more."""
    going: set[str] = field(default_factory=set)
    """Nodes of the round that leave it, and have not succeeded in it."""
    unaccounted: int = 0
    """Nodes of the round that nothing is known of: it is another leader's."""
    newcomers: set[str] = field(default_factory=set)
    """Nodes that wait and are not in the round."""
    strays: set[str] = field(default_factory=set)
    """Nodes inside a round that is not the header's, and that they will stop."""
    finding: tuple[RootCause | None] | None = None
    """The root cause of the round's failure, if there is one, once it was looked for."""


def derive(
    header: Header | None,
    rows: Mapping[str, NodeRow],
    seated: Collection[str],
    told: Mapping[str, NodeRow],
    goes: Callable[[NodeRow], bool],
) -> Membership:
    """Return the state of each node in the round of the header.

    `told` has the last row of each node in that round, in order, and `seated` the nodes that this
    leader gave places in it. `goes` says whether a row's node is to leave.
    """
    roster = Membership()
    silent = dict.fromkeys(node for node in seated if node not in told)
    ours = {**told, **silent} if header else {}
    for node, last in ours.items():
        _sort(roster, node, rows.get(node), last)
    for node, row in rows.items():
        if node not in ours:
            if row.state == "inside":
                roster.strays.add(node)
            elif not goes(row):
                roster.newcomers.add(node)
    reports = roster.reports.items()
    roster.failures = [node for node, row in reports if row.outcome in FAILURES]
    roster.succeeded = {node for node, row in reports if row.outcome == "succeeded"}
    roster.dropped = {node for node, row in reports if row.state == "waiting"}
    present = ours.keys() - roster.apart - roster.succeeded
    roster.going = {node for node in present if goes(rows.get(node) or told[node])}
    roster.unaccounted = max(0, header.size - len(ours)) if header else 0
    return roster


def _sort(roster: Membership, node: str, row: NodeRow | None, last: NodeRow | None) -> None:
    """Sort a node of the round by its present row and by the last one that it wrote in the
    round.
    """
    if last is None:
        (roster.placed if row else roster.apart).add(node)
    elif last.state == "inside":
        is_there = row is not None and row.token == last.token
        (roster.inside if is_there else roster.apart).add(node)
    elif row is None and not last.leaving and last.outcome != "succeeded":
        roster.apart.add(node)  # lost after it had reported: nothing of it runs
    else:
        roster.reports[node] = last
