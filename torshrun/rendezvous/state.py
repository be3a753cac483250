"""Decides for the leader: pure, (view, now) -> (sight, one action or when to look again).

A round is open, then closing, and then the next is formed. It is closed as soon as one of its
nodes fails, goes or is lost, or others are to join. The next is formed once nobody can run
workers of it any more: each of its nodes has reported, or its grant has run out. Only then is
it decided what a failure means: workers also fail because a node was lost, which shows later.

Each wait has an end, except for the end of a round that runs; docs/architecture.md has a table of
what is waited for, who acts, and by when.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from torshrun import exit_codes
from torshrun.rendezvous import causes, mending
from torshrun.rendezvous.actions import Adopt, Close, Conclude, Decision, Form, ListNodes, Mend
from torshrun.rendezvous.base import Outcome, Sequel
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.restart import History, following, judge
from torshrun.rendezvous.rows import Header, NodeRow, VerdictRow
from torshrun.rendezvous.selection import Selection, candidates, seat
from torshrun.rendezvous.sight import Sight
from torshrun.signals import FIRST_CAUSES

if TYPE_CHECKING:  # few rounds fail
    from torshrun.failure.root_cause import RootCause

ON_PURPOSE = ("preempted", "stopped")
"""Outcomes of a node that was told to leave."""


def decide(view: ClusterState, now: float) -> tuple[Sight, Decision]:
    """Return what the leader remembers from now on, and what it is to do."""
    _ = view.roster  # derived once for all that follows
    seen = view.with_sight(view.sight)
    decision = _decide(seen, now)
    return seen.sight, decision


def _decide(view: ClusterState, now: float) -> Decision:
    """Return what to do now, and update the sight of `view`, which is this decision's own."""
    stop, header = view.wishes.stop, view.header
    if stop:
        return _conclude("stopped", stop.code, stop.reason)
    if header is None:
        return _gather(view, now)
    if len(view.roster.succeeded) == header.size:
        return _conclude("succeeded", 0, "all workers succeeded")
    if header.phase == "closing" and not view.sight.listed_since_close:
        return Decision(ListNodes())
    _blame(view, header, now)
    return (_keep_open if header.phase == "open" else _change)(view, header, now)


def _wait(what: str, until: float, now: float) -> Decision:
    return Decision(None, until, f"for {what}, at most {math.ceil(until - now)} s more")


def _wait_to_stop(view: ClusterState, nodes: set[str]) -> Decision:
    """Wait for the nodes' agents to stop their workers.

    They must, within the time that workers get; nodes whose agents do not live are lost.
    """
    others = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return Decision(None, why=f"for {view.name(min(nodes))}{others} to stop the workers there")


def _grants_of(count: int) -> str:
    what = "were in a round of this run id and are not heard of"
    return f"the grants of {count} node(s) to run out, which {what}"


# ---- no round yet


def _gather(view: ClusterState, now: float) -> Decision:
    """Form the first round when all nodes are present, or some time after enough are.

    It is not the first of the job if the store has lost its records: some nodes may still run
    workers.
    """
    if view.roster.strays:
        return _wait_to_stop(view, view.roster.strays)
    earlier = [row for row in view.rows.values() if row.round_size]
    missing, fenced = _missing_of(earlier, view, now)
    if missing > 0 and now < fenced:
        return _wait(_grants_of(missing), fenced, now)
    restarts = max((row.restarts for row in earlier), default=0)
    formed = _form(view, now, History(restarts=restarts))
    if not isinstance(formed.action, Form):
        view.sight = view.sight.without_enough()
        return formed
    last_call = _last_call(view, now)
    if len(formed.action.seating.nodes) < view.limits[1] and now < last_call:
        return _wait("the last call of nodes", last_call, now)
    return formed


def _last_call(view: ClusterState, now: float) -> float:
    """Return until when more nodes are waited for, now that there are enough."""
    view.sight = view.sight.with_enough(now)
    return view.sight.enough_since + view.settings.last_call_timeout


def _missing_of(earlier: list[NodeRow], view: ClusterState, now: float) -> tuple[int, float]:
    """Return how many nodes of the last reported round are missing, and until when they may run
    workers.

    Its leader could not continue for longer than a ttl without the first of its nodes that is here
    and no longer beats to it, nor after it has come here itself; what it granted ends a ttl later.
    """
    if not earlier:
        return 0, now
    last, rules = max(earlier, key=lambda row: row.round), view.settings
    inside = [row for row in earlier if row.token == last.token and row.node_rank >= 0]
    view.sight = view.sight.with_first_seen([last.token, *(row.node for row in inside)], now)
    seen = view.sight.first_seen
    fenced = seen[last.token] + rules.outage_timeout + 2 * rules.ttl
    for row in inside:
        lead = rules.ttl if row.node == last.round_leader else 2 * rules.ttl
        fenced = min(fenced, seen[row.node] + lead)
    return last.round_size - len(inside), fenced


def _form(
    view: ClusterState, now: float, history: History, staying: frozenset[str] = frozenset()
) -> Decision:
    """Form the next round, if enough nodes are present."""
    seating = seat(view, now, staying)
    if len(seating.nodes) < view.limits[0] or not mending.has_state(view, seating.nodes, staying):
        return _too_few(view, now, seating)
    finding = causes.told(view) if view.header else ""
    return Decision(Form(view.sight.claimed + 1, seating, history, finding, staying))


def _too_few(view: ClusterState, now: float, seating: Selection) -> Decision:
    least, count, timeout = view.limits[0], len(seating.nodes), view.settings.join_timeout
    deadline = view.sight.idle_since + timeout
    whys = "".join(f" {view.name(node)}: {why}." for node, why in seating.waiting[:8])
    if now < deadline:
        _, _, what = _wait(f"at least {least} node(s) ({count} here)", deadline, now)
        return Decision(None, min(seating.wake, deadline), f"{what}.{whys}" if whys else what)
    reason = (
        f"waited {timeout:g} s for at least {least} nodes, and {count} came. Look which are "
        f"missing, ask for fewer (--nnodes MIN:MAX) or a longer --rdzv-conf join_timeout."
    )
    finding = causes.told(view) if view.header else ""
    return _conclude("failed", exit_codes.RENDEZVOUS, reason + whys, finding=finding)


def _conclude(
    outcome: Outcome,
    code: int,
    reason: str,
    sequel: Sequel | Literal[""] = "",
    finding: str = "",
) -> Decision:
    if outcome != "succeeded" and not 1 <= code <= 255:  # somebody's row says odd things
        code = 1
    verdict = VerdictRow(outcome=outcome, code=code, reason=reason, sequel=sequel, finding=finding)
    return Decision(Conclude(verdict))


# ---- a round is open


def _keep_open(view: ClusterState, header: Header, now: float) -> Decision:
    roster = view.roster
    if roster.failures:
        return Decision(Close(_describe(view, _root_cause(view)), failed=True))
    end, what, in_vain = min(_awaited(view), default=(math.inf, "", ""))
    reason = _departure(view) or (in_vain if end <= now else "")
    if not reason and header.size > view.limits[1]:
        reason = f"the job was scaled to {view.limits[1]} nodes"
    if reason and not mending.is_lasting(view, header):
        return Decision(Close(reason))
    is_anothers = header.fence != view.fence
    is_adopted = is_anothers and not roster.unaccounted and not roster.apart
    if view.untold or view.misses_untold or is_adopted:
        return Decision(Adopt())
    is_hasty = mending.is_hasty(view, was_lost=bool(in_vain) and end <= now)
    if action := mending.hurry(view, header, reason if is_hasty else "", now):
        return Decision(action)
    changes = reason or (view.sight.invited & roster.newcomers and mending.is_lasting(view, header))
    if changes and mending.have_left(view, header):
        return _go_on(view, header, now)
    if reason:
        action = mending.leave(view, header, reason, at_commit=not is_hasty)
    else:
        action = mending.step(view, header)
    if action:
        return Decision(action)
    if header.mending:
        wake = min(end if end > now else math.inf, mending.commit_by(view, header))
        return Decision(None, wake, mending.awaited(view, header))
    growth, wait = _growth(view, header, now), _wait(what, end, now) if what else Decision(None)
    return growth if growth.action else min(growth, wait, key=lambda decision: decision.wake)


def _go_on(view: ClusterState, header: Header, now: float) -> Decision:
    """Form the next round of other nodes, with the workers that have left this one."""
    if obstacle := mending.leave(view, header, header.reason):
        return Decision(obstacle)
    if waits := _unfenced(view, set(), now):
        return waits
    staying = mending.staying(view)
    too_few = len(staying) + sum(map(view.stays, view.rows)) < view.limits[0]
    if too_few and (verdict := _preempted(view)):
        return verdict
    formed = _form(view, now, mending.history(view, header), staying)
    if isinstance(formed.action, Form) and not mending.fits(view, header, formed.action):
        return Decision(Close(header.reason))
    return formed


def _awaited(view: ClusterState) -> Iterator[tuple[float, str, str]]:
    """Yield until when something is waited for, what, and what to say if the wait timed out."""
    roster = view.roster
    for node in roster.apart:
        name = view.name(node)
        yield view.fenced_at(node), f"{name} to be heard of again", f"{name} was lost"
    if roster.unaccounted:
        count = roster.unaccounted
        yield view.sight.blind_until, _grants_of(count), f"{count} node(s) were lost"
    if roster.placed:
        name = view.name(min(roster.placed))
        yield _enter_by(view), f"{name} to enter the round", f"{name} did not enter it"


def _enter_by(view: ClusterState) -> float:
    """Return until when nodes may enter the round.

    It allows for a read and a write of a store that nodes do reach; thousands take turns.
    """
    return view.sight.opened_at + max(2 * view.settings.ttl, 10.0) + len(view.sight.seated) / 100


def _departure(view: ClusterState) -> str:
    """Return who leaves, or lost touch, and why; "" if nobody does."""
    roster = view.roster
    if not roster.going:
        return f"{view.name(min(roster.dropped))} lost touch with it" if roster.dropped else ""
    node = min(roster.going)
    row = view.rows.get(node) or roster.reports[node]
    if node in view.wishes.drained:
        return f"{view.name(node)} was drained"
    return f"{view.name(node)} leaves: {row.leaving_reason or row.leaving}"


def _growth(view: ClusterState, header: Header, now: float) -> Decision:
    """Close the round for newcomers: at once if they fill the job, else after the last call."""
    roster, (least, most) = view.roster, view.limits
    room = most - header.size
    rows = [view.rows[node] for node in roster.newcomers]
    among = candidates(view, rows, now, least - header.size)
    if not among.ready or room <= 0 or roster.unaccounted or view.settings.fixed_ranks:
        view.sight = view.sight.without_enough()
        why = next((f"for {view.name(node)}: {why}" for node, why in among.held.items()), "")
        return Decision(None, among.wake, why) if room > 0 else Decision(None)
    last_call = _last_call(view, now)
    if any(row.holds for row in view.rows.values()):
        return Decision(None, why="for the job's next checkpoint, to let nodes in")
    if len(among.ready) < room and now < last_call:
        return _wait("the last call of nodes", last_call, now)
    until, late = mending.joining(view, now)
    if late:
        return Decision(None, until, f"for the workers of {late} to call join(), to let nodes in")
    invited = frozenset(row.node for row in among.ready)
    view.sight = replace(view.sight, invited=invited)
    count = min(room, len(among.ready))
    names = view.name(min(invited)) if count == 1 else f"{count} nodes"
    if mending.is_lasting(view, header):
        return Decision(Mend(f"{names} joined", at_commit=True))
    return Decision(Close(f"{names} joined"))


# ---- a round is closing


def _change(view: ClusterState, header: Header, now: float) -> Decision:
    roster = view.roster
    if view.misses_untold:
        return Decision(Adopt())
    # Workers that were to move to this round run in the one before until their agent hears of it.
    late = {node for node in roster.placed if view.rows[node].state == "inside"} | roster.strays
    waits = _unfenced(view, roster.inside | late, now)
    if waits:
        return waits
    changed = roster.apart or roster.going or roster.dropped or roster.unaccounted
    if not roster.failures or changed:
        return _after_departures(view, now)
    return _after_failure(view, header, now)


def _unfenced(view: ClusterState, running: set[str], now: float) -> Decision | None:
    """Return what to wait for as long as workers of the round may run; None if nothing.

    They do on the nodes `running`.
    """
    roster = view.roster
    if running:
        return _wait_to_stop(view, running)
    end, node = max(((view.fenced_at(node), node) for node in roster.apart), default=(now, ""))
    if end > now:
        return _wait(f"the grant of {view.name(node)}, which is lost, to run out", end, now)
    if roster.unaccounted and view.sight.blind_until > now:
        return _wait(_grants_of(roster.unaccounted), view.sight.blind_until, now)
    return None


def _after_departures(view: ClusterState, now: float) -> Decision:
    if sum(map(view.stays, view.rows)) < view.limits[0] and (verdict := _preempted(view)):
        return verdict
    return _form(view, now, view.history)


def _preempted(view: ClusterState) -> Decision | None:
    """Return the end of a job of too few nodes, if one of them was told to go."""
    roster = view.roster
    for node in sorted(roster.going):
        row = roster.reports.get(node) or view.told[node]
        if row.leaving in ON_PURPOSE:
            reason = f"{_departure(view)}; fewer than {view.limits[0]} nodes are left"
            return _conclude(cast(Outcome, row.leaving), row.leaving_code, reason)
    return None


def _after_failure(view: ClusterState, header: Header, now: float) -> Decision:
    cause = _cause_on_all_nodes(view)
    sequel = judge(header.max_restarts, view.history, cause.startup)
    if sequel != "restart":
        return _failed(view, cause, sequel)
    ready = view.sight.idle_since + header.delay
    if now < ready:
        return _wait("the pause after a failure to end", ready, now)
    return _form(view, now, following(view.history, cause.startup, cause.seconds))


def _failed(view: ClusterState, cause: NodeRow, sequel: Sequel) -> Decision:
    code = exit_codes.HUNG if cause.outcome == "hung" else cause.code
    if sequel == "budget spent":
        code = exit_codes.BUDGET_SPENT
    reason, finding = _describe(view, cause), causes.told(view)
    return _conclude(cast(Outcome, cause.outcome), code, reason, sequel, finding)


def _cause_on_all_nodes(view: ClusterState) -> NodeRow:
    """Return the report of the node with the root cause, if one of its workers failed first.

    If there is none, return the report that the others most likely follow from.
    """
    finding = causes.found(view)
    blamed = finding.ranks[:1] if finding and finding.certainty != "undecided" else ()
    for node in view.roster.failures:
        row = view.roster.reports[node]
        if any(rank - row.first_rank in range(row.nproc) for rank in blamed) and not row.follows:
            return row
    return _root_cause(view)


def _root_cause(view: ClusterState) -> NodeRow:
    """Return the report that the others most likely follow from; of equal ones the first."""
    reports = [view.roster.reports[node] for node in view.roster.failures]
    return min(reports, key=_remoteness)


def _remoteness(row: NodeRow) -> tuple[bool, bool, bool]:
    """Return a sort key that grows with how likely a failure follows from another one."""
    return row.follows, row.signo not in FIRST_CAUSES, row.outcome == "hung"


def _describe(view: ClusterState, cause: NodeRow) -> str:
    """Describe the failure, and the fault as the root cause has it.

    The node whose exit code counts has not seen everything, and another may be at fault.
    """
    finding = causes.found(view)
    if finding and finding.ranks and not _tells_of(cause, finding):
        return finding.summary
    what = cause.cause or ("workers hung" if cause.outcome == "hung" else "workers failed")
    return f"{view.name(cause.node)}: {what}"


def _tells_of(row: NodeRow, finding: RootCause) -> bool:
    """Return whether the node says how a rank at fault ended, and of the same kind."""
    found = _MANNER.match(row.cause)
    if not found:
        return not row.cause.startswith(("rank ", "ranks ", "no rank"))
    same_kind = not row.cause.endswith(")") or row.cause.endswith(f"({finding.reading.kind})")
    return finding.certainty != "undecided" and int(found[1]) in finding.ranks and same_kind


_MANNER = re.compile(r"rank (\d{1,7}): (?:exit code|killed by|hung)\b")


# ---- hosts that lose their nodes


def _blame(view: ClusterState, header: Header, now: float) -> None:
    """Count against their hosts the nodes that were lost, lost touch, did not enter, left, or were
    gone when the round had been closed for them, but for those that were told to go.
    """
    roster, gone = view.roster, view.sight.invited - view.rows.keys()
    lost = {node for node in roster.apart if view.fenced_at(node) <= now}
    is_late = header.phase == "open" and now >= _enter_by(view)
    late = roster.placed if is_late else set()
    for node in late:
        view.sight = view.sight.with_absent(node, view.latest[node].sequence)
    for node in gone | lost | late | roster.dropped | (roster.going - view.wishes.drained):
        if view.latest[node].leaving not in ON_PURPOSE:
            view.sight = view.sight.with_loss(view.host(node), now)
