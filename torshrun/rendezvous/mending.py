"""Decides for the leader how lost workers are replaced while all others continue. Pure.

The round stays open meanwhile, with its token and grants. It is over once its header says that it
is mending, and the next has begun once the header has the next number; both are written once, by
transactions that the election fences. Whatever else ends a round closes it, and restarts all.
"""

from __future__ import annotations

from torshrun.rendezvous.actions import Action, Close, Mend, Mended
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.restart import following, judge
from torshrun.rendezvous.rows import Header, NodeRow

HAVE_PARKED = ("parked", "bare")


def step(view: ClusterState, header: Header) -> Action | None:
    """Return what to do about lost workers; None if there are none, or nodes are waited for."""
    inside = [view.told[node] for node in sorted(view.roster.inside)]
    standing = [row for row in inside if row.standing and row.round == header.number]
    if not standing and not header.mending:
        return None
    if reason := _obstacle(view, header, standing):
        return Close(reason, failed=True)
    if len(inside) < header.size:  # until the others have entered, or are lost
        return None
    if not header.mending:
        return Mend(f"{view.name(standing[0].node)} has lost workers")
    if len(standing) < header.size or any(row.standing not in HAVE_PARKED for row in standing):
        return None
    return Mended(following(view.history, "", max(row.seconds for row in standing)))


def awaited(view: ClusterState, header: Header) -> str:
    """Return what is waited for while a round is mending, for people."""
    told = view.told
    late = [
        node
        for node in sorted(view.roster.inside)
        if told[node].round != header.number or told[node].standing not in HAVE_PARKED
    ]
    return f"for the workers of {view.name(late[0])} to leave round {header.number}" if late else ""


def _obstacle(view: ClusterState, header: Header, standing: list[NodeRow]) -> str:
    """Return why all workers have to be restarted; "" if they need not be."""
    unable = [row.node for row in standing if row.standing == "unable"]
    if unable:
        return f"workers were lost, and those of {view.name(unable[0])} cannot go on without them"
    if judge(header.max_restarts, view.history) != "restart":
        return "workers were lost, and no restarts are left"
    if view.roster.reports:
        done = view.name(next(iter(view.roster.reports)))
        return f"workers were lost, and those of {done} have ended"
    if len(standing) == header.size and all(row.standing == "bare" for row in standing):
        return "all workers were lost"
    return ""
