"""Selects who takes part in the next round, and who waits and why. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.rows import NodeRow
from torshrun.rendezvous.settings import misfit

_UNHEARD = "its beats do not reach the leader"
_UNFIT = "its ttl, outage_timeout (--rdzv-conf) or --max-restarts is another than other nodes'"
_MISSED = "it did not enter the round that it had a place in; it is taken again once it says more"


@dataclass(frozen=True, slots=True)
class Selection:
    """Holds the selection for the next round."""

    nodes: tuple[NodeRow, ...]
    """Nodes in the order of their node ranks."""
    waiting: tuple[tuple[str, str], ...]
    """Nodes without a place, and why."""
    wake: float
    """Time at which one of these may have a place though nothing else has changed."""


class Candidates(NamedTuple):
    """Holds who may have a place now, and who not yet."""

    ready: list[NodeRow]
    held: dict[str, str]
    """Nodes that do not fit, are not heard, or did not enter the last round they had a place in, or
    of hosts that lose theirs again and again; and why each waits."""
    wake: float = math.inf
    """Time at which the first of these may have a place."""


def candidates(
    view: ClusterState,
    rows: list[NodeRow],
    now: float,
    least: int,
    staying: frozenset[str] = frozenset(),
) -> Candidates:
    """Return which of these nodes may have a place now; at least `least` are needed."""
    known, hosts = view.roster.reports.keys() - view.roster.dropped | staying, view.sight.hosts
    absent = {row.node: _MISSED for row in rows if view.is_absent(row.node)}
    absent |= {row.node: _UNHEARD for row in rows if not view.hears(row.node)}
    absent |= {row.node: _UNFIT for row in rows if row.ttl and misfit(row, view.settings)}
    rows = [row for row in rows if row.node not in absent]
    new = {row.node: view.host(row.node) for row in rows if row.node not in known}
    ends = {node: hosts.free_at(host, needed=False) for node, host in new.items()}
    held = {node: end for node, end in ends.items() if end > now}
    if len(rows) - len(held) < least:
        ends = {node: hosts.free_at(new[node], needed=True) for node in held}
        held = {node: end for node, end in ends.items() if end > now}
    ready = [row for row in rows if row.node not in held]
    why = {node: hosts.why(new[node], end, now) for node, end in held.items()}
    return Candidates(ready, absent | why, min(held.values(), default=math.inf))


def seat(view: ClusterState, now: float, staying: frozenset[str] = frozenset()) -> Selection:
    """Give out the places: first to nodes of the last round, then in the order of arrival.

    The workers of the nodes `staying` keep their processes.
    """
    rows = [row for row in view.rows.values() if view.stays(row.node) or row.node in staying]
    among = candidates(view, rows, now, view.limits[0], staying)
    last = {node: view.told[node].node_rank for node in staying} or {
        node: report.node_rank for node, report in view.roster.reports.items()
    }
    rows = sorted(among.ready, key=lambda row: _seniority(view, row, last))
    if view.settings.fixed_ranks:
        chosen, waiting = _chosen_by_rank(view, rows)
    else:
        chosen, waiting = _chosen(view, rows, last, moves=not keeps_ranks(view, staying))
    return Selection(tuple(chosen), (*waiting, *among.held.items()), among.wake)


def _seniority(
    view: ClusterState, row: NodeRow, last: Mapping[str, int]
) -> tuple[bool, int, int, str]:
    revision = view.nodes.revisions.get(row.node, 0)
    return row.node not in last, last.get(row.node, 0), revision, row.node


def _chosen(
    view: ClusterState, rows: list[NodeRow], ranks: Mapping[str, int], *, moves: bool
) -> tuple[list[NodeRow], list[tuple[str, str]]]:
    most = view.limits[1]
    taken, spare = {row.node: row for row in rows[:most]}, rows[most:]
    survivors = {node: ranks[node] for node in taken if node in ranks}
    order = assign(survivors, [node for node in taken if node not in survivors], moves=moves)
    why = f"the job has its maximum of {most} node(s); this one waits in case another is lost"
    return [taken[node] for node in order], [(row.node, why) for row in spare]


def keeps_ranks(view: ClusterState, staying: frozenset[str]) -> bool:
    """Return whether workers that stay have parts of a state by their ranks."""
    return any(view.told[node].lasting == "same" for node in staying)


def assign(
    survivors: Mapping[str, int], newcomers: Sequence[str], *, moves: bool = True
) -> list[str]:
    """Return the nodes in the order of their new ranks, which are dense.

    Survivors have a rank already, and as few of them move as possible. The highest fill holes that
    newcomers do not, and the hole at rank 0 if it `moves`: a survivor has the state that newcomers
    request from rank 0.
    """
    size = len(survivors) + len(newcomers)
    seats: dict[int, str] = {}
    movers = []
    for node, rank in sorted(survivors.items(), key=lambda item: item[1]):
        if 0 <= rank < size and rank not in seats:
            seats[rank] = node
        else:
            movers.append(node)
    if moves and seats and 0 not in seats and not movers:
        movers = [seats.pop(max(seats))]
    waiting = iter([*reversed(movers), *newcomers])
    return [seats[rank] if rank in seats else next(waiting) for rank in range(size)]


def _chosen_by_rank(
    view: ClusterState, rows: list[NodeRow]
) -> tuple[list[NodeRow], list[tuple[str, str]]]:
    """Give each node the rank that it brings; if several bring the same, the first has it."""
    holders: dict[int, NodeRow] = {}
    waiting = []
    for row in rows:
        holder = holders.setdefault(row.fixed_rank, row)
        if not 0 <= row.fixed_rank < view.limits[1]:
            del holders[row.fixed_rank]
            waiting.append((row.node, f"there is no node rank {row.fixed_rank} (--node-rank)"))
        elif holder is not row:
            taken = f"node rank {row.fixed_rank} (--node-rank) is taken by {view.name(holder.node)}"
            way_out = "give each node its own --node-rank, or all of them --rdzv-backend c10d"
            waiting.append((row.node, f"{taken}: {way_out}"))
    dense = [holders[rank] for rank in sorted(holders) if rank < len(holders)]
    return (dense, waiting) if len(dense) == len(holders) else ([], waiting)
