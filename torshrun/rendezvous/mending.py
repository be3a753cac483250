"""Decides for the leader how a round is left by workers that keep their processes. Pure.

They do when workers of the round are lost, and when nodes leave it or others come, provided that
the workers of all nodes that stay can. The round stays open meanwhile, with its token and grants.
It is over once its header says that it is mending, and the next has begun once the header has the
next number; both are written once, by transactions that the election fences. If all nodes stay, the
next round has the same token, and otherwise places and a token of its own. Whatever else ends a
round closes it, and restarts all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torshrun.rendezvous.actions import Action, Close, Form, Mend, Mended
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.restart import History, following, judge
from torshrun.rendezvous.rows import Header, NodeRow
from torshrun.rendezvous.selection import keeps_ranks

HAVE_PARKED = ("parked", "bare")
COMMIT_WITHIN = 300.0
"""Seconds in which a round that is to end at a commit ends, or else at once."""
JOIN_WITHIN = 60.0
"""Seconds for which nodes that come wait for workers that have started with a round."""


def is_lasting(view: ClusterState, header: Header) -> bool:
    """Return whether workers can keep their processes when nodes leave the round, or others come.

    The next round then has the next number, so that the workers know it.
    """
    roster = view.roster
    rows = [view.told[node] for node in roster.inside - roster.going]
    has_ended = bool(roster.succeeded or roster.failures)
    may_form = not view.settings.fixed_ranks and view.sight.claimed == header.number
    if not may_form or has_ended or not rows or not all(row.lasting for row in rows):
        return False
    return not keeps_ranks(view, staying(view)) or _may_be_as_many(view, header, len(rows))


def joining(view: ClusterState, now: float) -> tuple[float, str]:
    """Return until when nodes that come wait for the workers of the round to join, and for whose.

    As long as they have not, the round could only be closed, which restarts all. The name is "" if
    no workers keep their processes, or all do, or time is up.
    """
    until = view.sight.opened_at + JOIN_WITHIN
    rows = [view.told[node] for node in sorted(view.roster.inside)]
    late = [row.node for row in rows if not row.lasting]
    if now >= until or not late or len(late) == len(rows):
        return math.inf, ""
    return until, view.name(late[0])


def fits(view: ClusterState, header: Header, form: Form) -> bool:
    """Return whether workers that stay can go on among the nodes of the next round."""
    count = sum(row.nproc for row in form.seating.nodes)
    return count == header.world_size or not keeps_ranks(view, form.staying)


def _may_be_as_many(view: ClusterState, header: Header, count: int) -> bool:
    """Return whether others may take the places of all nodes that leave.

    If the job may not go on with fewer nodes, it waits for them anyway. count: the nodes that stay.
    """
    missing, (least, most) = header.size - count, view.limits
    others = len(view.roster.newcomers) + len(view.roster.dropped)
    return missing > 0 and most >= header.size and (least >= header.size or others >= missing)


def step(view: ClusterState, header: Header) -> Action | None:
    """Return what to do about lost workers; None if there are none, or nodes are waited for."""
    inside, standing = _rows(view, header)
    if not standing and not header.mending:
        return None
    if reason := _obstacle(view, header, inside, standing):
        return Close(reason, failed=True)
    if len(inside) < header.size:  # until the others have entered, or are lost
        return None
    if not header.mending:
        return Mend(f"{view.name(standing[0].node)} has lost workers")
    if not _all_have_parked(inside, standing):
        return None
    return Mended(history(view, header))


def is_hasty(view: ClusterState, *, was_lost: bool) -> bool:
    """Return whether workers cannot finish their step before nodes leave the round.

    They can if nodes were asked to go that run, or the job was scaled.
    """
    roster = view.roster
    patient = view.wishes.drained & roster.inside
    return was_lost or bool(roster.dropped) or not roster.going <= patient


def hurry(view: ClusterState, header: Header, reason: str, now: float) -> Action | None:
    """Return what has workers leave the round at once that were to do so at their next commit.

    They are if that does not come, as workers were lost, or in time, or for this reason if there is
    one.
    """
    if not (header.mending and header.at_commit):
        return None
    _, standing = _rows(view, header)
    lost = [view.name(row.node) for row in standing if row.lost]
    if lost:
        return Mend(f"{lost[0]} has lost workers")
    is_late = now >= commit_by(view, header)
    return Mend(reason or header.reason) if reason or is_late else None


def commit_by(view: ClusterState, header: Header) -> float:
    """Return until when the workers may take to commit, if they are to leave the round then."""
    ends_at_commit = header.mending and header.at_commit
    return view.sight.idle_since + COMMIT_WITHIN if ends_at_commit else math.inf


def leave(
    view: ClusterState, header: Header, reason: str, *, at_commit: bool = False
) -> Action | None:
    """Return what is to be done so that workers leave the round, as nodes change.

    Return None if some have still to leave it, or all have.
    """
    inside, standing = _rows(view, header)
    if obstacle := _obstacle(view, header, inside, standing):
        has_lost = any(row.lost for row in standing)
        return Close(obstacle if has_lost else reason, failed=has_lost)
    return None if header.mending else Mend(reason, at_commit)


def have_left(view: ClusterState, header: Header) -> bool:
    """Return whether all workers have left the round that is mending."""
    return header.mending and _all_have_parked(*_rows(view, header))


def staying(view: ClusterState) -> frozenset[str]:
    """Return the nodes whose workers go on in the next round."""
    return frozenset(view.roster.inside - view.roster.going)


def has_state(view: ClusterState, nodes: Iterable[NodeRow], staying: frozenset[str]) -> bool:
    """Return whether one of these nodes has the state that new workers need, if any do."""
    return not staying or any(
        row.node in staying and view.told[row.node].standing == "parked" for row in nodes
    )


def history(view: ClusterState, header: Header) -> History:
    """Return the job's history once workers that were lost, if any were, have been replaced."""
    _, standing = _rows(view, header)
    lost = [row.seconds for row in standing if row.lost]
    return following(view.history, "", max(lost)) if lost else view.history


def awaited(view: ClusterState, header: Header) -> str:
    """Return what is waited for while a round is mending, for people."""
    told = view.told
    late = [
        node
        for node in sorted(view.roster.inside)
        if told[node].round != header.number or told[node].standing not in HAVE_PARKED
    ]
    return f"for the workers of {view.name(late[0])} to leave round {header.number}" if late else ""


def _rows(view: ClusterState, header: Header) -> tuple[list[NodeRow], list[NodeRow]]:
    """Return the rows of the nodes inside, and of those that have said how they stand."""
    inside = [view.told[node] for node in sorted(view.roster.inside)]
    return inside, [row for row in inside if row.standing and row.round == header.number]


def _all_have_parked(inside: list[NodeRow], standing: list[NodeRow]) -> bool:
    all_stand = len(standing) == len(inside)
    return all_stand and all(row.standing in HAVE_PARKED for row in standing)


def _obstacle(
    view: ClusterState, header: Header, inside: list[NodeRow], standing: list[NodeRow]
) -> str:
    """Return why all workers have to be restarted; "" if they need not be."""
    unable = [row.node for row in standing if row.standing == "unable"]
    if unable:
        return f"workers were lost, and those of {view.name(unable[0])} cannot go on without them"
    has_lost = any(row.lost for row in standing)
    if has_lost and judge(header.max_restarts, view.history) != "restart":
        return "workers were lost, and no restarts are left"
    if view.roster.succeeded:
        done = view.name(min(view.roster.succeeded))
        return f"workers were lost, and those of {done} have ended"
    staying = [row for row in standing if row.node not in view.roster.going]
    all_stand = header.mending and len(standing) == len(inside)
    if all_stand and all(row.standing == "bare" for row in staying):
        return "all workers were lost"
    return ""
