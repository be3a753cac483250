"""Who takes part in the next round, and who waits and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from torshrun.rendezvous.ranks import assign, first_ranks
from torshrun.rendezvous.rows import NodeRow
from torshrun.rendezvous.view import View


@dataclass(frozen=True, slots=True)
class Seating:
    """Of the next round."""

    nodes: tuple[NodeRow, ...]
    """By node rank."""
    first_ranks: tuple[int, ...]
    """Of each node's first worker."""
    waiting: tuple[tuple[str, str], ...]
    """Nodes without a place, and why."""

    @property
    def world_size(self) -> int:
        return self.first_ranks[-1] + self.nodes[-1].nproc if self.nodes else 0


def seat(view: View) -> Seating:
    """Give out the places: first to nodes of the last round, then in the order of arrival."""
    rows = [row for row in view.rows.values() if view.stays(row.node)]
    rows.sort(key=lambda row: _seniority(view, row))
    chosen, waiting = (
        _chosen_by_rank(view, rows) if view.settings.fixed_ranks else _chosen(view, rows)
    )
    firsts = first_ranks([row.nproc for row in chosen])
    return Seating(tuple(chosen), tuple(firsts), tuple(waiting))


def _seniority(view: View, row: NodeRow) -> tuple[bool, int, int, str]:
    new = row.node not in view.reports
    rank = 0 if new else view.reports[row.node].node_rank
    return new, rank, view.revisions.get(row.node, 0), row.node


def _chosen(view: View, rows: list[NodeRow]) -> tuple[list[NodeRow], list[tuple[str, str]]]:
    most = view.limits[1]
    taken, spare = {row.node: row for row in rows[:most]}, rows[most:]
    ranks = {node: report.node_rank for node, report in view.reports.items()}
    survivors = {node: ranks[node] for node in taken if node in ranks}
    order = assign(survivors, [node for node in taken if node not in survivors])
    why = f"the job has its maximum of {most} node(s); this one waits in case another is lost"
    return [taken[node] for node in order], [(row.node, why) for row in spare]


def _chosen_by_rank(view: View, rows: list[NodeRow]) -> tuple[list[NodeRow], list[tuple[str, str]]]:
    """Each node has the rank that it brings; the first to bring one has it."""
    holders: dict[int, NodeRow] = {}
    waiting = []
    for row in rows:
        holder = holders.setdefault(row.fixed_rank, row)
        if not 0 <= row.fixed_rank < view.limits[1]:
            del holders[row.fixed_rank]
            waiting.append((row.node, f"there is no node rank {row.fixed_rank} (--node-rank)"))
        elif holder is not row:
            why = f"node rank {row.fixed_rank} (--node-rank) is taken by {view.name(holder.node)}"
            waiting.append((row.node, why))
    dense = [holders[rank] for rank in sorted(holders) if rank < len(holders)]
    return (dense, waiting) if len(dense) == len(holders) else ([], waiting)
