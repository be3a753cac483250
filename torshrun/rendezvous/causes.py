"""Finds the root cause of a round's failure in the reports of all nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.membership import FAILURES
from torshrun.rendezvous.rows import NodeRow
from torshrun.text import printable

if TYPE_CHECKING:  # few rounds fail
    from torshrun.failure.rank_report import RankReport, Silent
    from torshrun.failure.root_cause import RootCause
    from torshrun.failure.trails import Node

_LOST = "its agent and its workers gave no sign of life any more, and its lease has ended"
_OUT_OF_TOUCH = "it reached neither the store nor the job's leader for too long"


def found(view: ClusterState) -> RootCause | None:
    """Return the root cause of the round's failure, from what is known now; None if nothing failed.

    The result does not change until a row does, and is computed once for each change.
    """
    roster = view.roster
    if roster.finding is None:
        roster.finding = (_found(view),)
    return roster.finding[0]


def told(view: ClusterState) -> str:
    """Return the root cause as text, for all nodes; "" if there is none."""
    finding = found(view)
    if finding is None:
        return ""
    from torshrun.failure.exported_reports import encode_finding

    return encode_finding(finding)


def _found(view: ClusterState) -> RootCause | None:
    roster = view.roster
    silent = [*_silent(view)]
    if not roster.failures and not silent:
        return None
    from torshrun.failure.exported_reports import decode_hang
    from torshrun.failure.graph import find
    from torshrun.failure.trails import conclude

    rows = roster.reports.values()
    hangs = (decode_hang(row.testimony) for row in rows if row.outcome == "hung")
    hang = next(filter(None, hangs), "")
    return find([*_witnesses(view)], silent, hang, conclude([*_trails(view)]))


def _trails(view: ClusterState) -> Iterator[Node]:
    """Yield the last operations of each node's ranks, as far as they were reported."""
    from torshrun.failure.exported_reports import decode_trails
    from torshrun.failure.trails import Node

    for row in view.roster.reports.values():
        if trails := decode_trails(row.testimony, _ranks(row)):
            yield Node(view.host(row.node), trails)


def _witnesses(view: ClusterState) -> Iterator[RankReport]:
    from torshrun.failure.exported_reports import decode
    from torshrun.failure.rank_report import RankReport

    hosts = Counter(view.host(node) for node in view.roster.reports)
    for turn, row in enumerate(view.roster.reports.values()):
        ranks, host = _ranks(row), view.host(row.node)
        names_more = hosts[host] > 1
        if row.outcome == "succeeded":
            for rank in ranks:
                yield RankReport(rank=rank, node=row.node_rank, end="done", how="exit code 0")
            continue
        told = decode(row.testimony, ranks, row.node_rank, host)
        for each in told or _in_brief(row, ranks, host):
            where = f"node {row.node_rank}, {each.where}" if names_more else each.where
            yield replace(each, turn=turn, where=where)


def _in_brief(row: NodeRow, ranks: range, host: str) -> Iterator[RankReport]:
    """Yield a report for a failure of which its node says only that it was one of its ranks."""
    from torshrun.failure.kinds import Diagnosis, Kind
    from torshrun.failure.rank_report import RankReport
    from torshrun.failure.suspect import Suspect

    if row.outcome in FAILURES and ranks:
        yield RankReport(
            rank=ranks[0],
            node=row.node_rank,
            end="failed",
            how=printable(row.cause) or f"exit code {row.code}",
            where=f"host {host}",
            reading=Diagnosis(Kind.EXCEPTION),
            alike=row.node,
            blame=Suspect(how="lost") if row.follows else None,
        )


def _silent(view: ClusterState) -> Iterator[Silent]:
    """Yield the nodes that were lost, that lost touch, or that cannot run workers."""
    from torshrun.failure.rank_report import Silent

    facts: dict[str, Any]
    roster = view.roster
    unable = {node for node, row in roster.reports.items() if row.leaving == "lost"}
    for node in sorted({*roster.apart, *roster.dropped, *unable} - view.wishes.drained):
        row = view.told.get(node) or view.latest.get(node)
        if row is None or node in roster.succeeded:
            continue
        why = _OUT_OF_TOUCH if node in roster.dropped else row.leaving_reason or _LOST
        facts = {"node": row.node_rank, "name": view.name(node), "ranks": _ranks(row)}
        yield Silent(**facts, why=printable(why), is_unable=node in unable)


def _ranks(row: NodeRow) -> range:
    return range(row.first_rank, row.first_rank + row.nproc) if row.first_rank >= 0 else range(0)
