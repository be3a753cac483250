"""What the leader decides: pure, (view, now) -> one action, or when to look again.

A round is open, then closing, and then the next is formed. It is closed as soon as one of its
nodes fails, goes or is lost, or others are to join. The next is formed once nobody can run
workers of it any more: each of its nodes has reported, or its grant has run out. Only then is
it decided what a failure means: workers also fail because a node was lost, which shows later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from torshrun import exit_codes
from torshrun.rendezvous.base import Outcome, Sequel
from torshrun.rendezvous.restart import History, following, judge
from torshrun.rendezvous.rows import NodeRow, VerdictRow
from torshrun.rendezvous.seats import Seating, seat
from torshrun.rendezvous.view import View
from torshrun.signals import FIRST_CAUSES


@dataclass(frozen=True, slots=True)
class Close:
    """Write that the round is closing."""

    number: int
    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """Write the next round."""

    number: int
    seating: Seating
    history: History


@dataclass(frozen=True, slots=True)
class Adopt:
    """Write the round's header again, as this leader's own."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """Write how the job ended."""

    verdict: VerdictRow


Action = Close | Form | Adopt | Conclude


class Decision(NamedTuple):
    action: Action | None
    """The one thing to do now; decide again when it is done."""
    wake: float = math.inf
    """When to decide again, if nothing is heard before."""


def decide(view: View, now: float) -> Decision:
    """What to do now."""
    stop = view.wishes.stop
    if stop:
        return Decision(Conclude(VerdictRow(outcome="stopped", code=stop.code, reason=stop.reason)))
    if view.header is None:
        return _gather(view, now)
    if view.header.phase == "open":
        return _keep_open(view, now)
    return _change(view, now)


# ---- no round yet


def _gather(view: View, now: float) -> Decision:
    """The first round is formed when all are there, or some time after enough are.

    It is not the first if the store has lost what it held: then some may still run workers.
    """
    least, most = view.limits
    if view.strays:
        return Decision(None)
    if len(view.newcomers) < least:
        view.enough_since = math.inf
        return _too_few(view, now, len(view.newcomers))
    view.enough_since = min(view.enough_since, now)
    last_call = view.enough_since + view.settings.last_call_timeout
    if len(view.newcomers) < most and now < last_call:
        return Decision(None, last_call)
    return _form(view, now, _next(view), History())


def _too_few(view: View, now: float, count: int) -> Decision:
    deadline = view.short_since + view.settings.join_timeout
    if now < deadline:
        return Decision(None, deadline)
    waited, (least, _) = view.settings.join_timeout, view.limits
    reason = (
        f"waited {waited:g} s for at least {least} nodes, and {count} came. Look at the nodes that "
        f"are missing, or ask for fewer (--nnodes MIN:MAX) or a longer --rdzv-conf join_timeout."
        f"{_misplaced(view)}"
    )
    return _conclude("failed", exit_codes.RENDEZVOUS, reason)


def _misplaced(view: View) -> str:
    """Which nodes came with a rank that they cannot have."""
    if not view.settings.fixed_ranks:
        return ""
    return "".join(f" {view.name(node)}: {why}." for node, why in seat(view).waiting)


def _conclude(
    outcome: Outcome, code: int, reason: str, sequel: Sequel | Literal[""] = ""
) -> Decision:
    sticky = outcome == "succeeded"
    if not sticky and not 1 <= code <= 255:  # somebody's row says odd things
        code = 1
    return Decision(
        Conclude(
            VerdictRow(outcome=outcome, code=code, reason=reason, sequel=sequel, sticky=sticky)
        )
    )


def _form(view: View, now: float, number: int, history: History) -> Decision:
    seating = seat(view)
    if len(seating.nodes) < view.limits[0]:
        return _too_few(view, now, len(seating.nodes))
    return Decision(Form(number, seating, history))


# ---- a round is open


def _keep_open(view: View, now: float) -> Decision:
    header = view.header
    assert header is not None
    if len(view.succeeded) == header.size:
        return _conclude("succeeded", 0, "all workers succeeded")
    if view.failures:
        cause = _root_cause(view)
        return Decision(Close(header.number, _describe(view, cause), failed=True))
    if view.going:
        return Decision(Close(header.number, _departure(view)))
    if view.dropped:
        return Decision(Close(header.number, f"{view.name(min(view.dropped))} lost touch with it"))
    lost, wake = _lost(view, now)
    if lost:
        return Decision(Close(header.number, lost))
    if header.size > view.limits[1]:
        reason = f"the job was scaled to {view.limits[1]} nodes"
        return Decision(Close(header.number, reason))
    if _adoptable(view) or view.untold:
        return Decision(Adopt())
    growth = _growth(view, now)
    return growth if growth.action else Decision(None, min(wake, growth.wake))


def _adoptable(view: View) -> bool:
    """Whether the round is another leader's, but this one knows all its nodes now."""
    header = view.header
    own = not header or header.fence == view.fence
    return not own and not view.unaccounted and not view.apart


def _lost(view: View, now: float) -> tuple[str, float]:
    """Why the round has lost nodes, or "" and when that might be found."""
    ends = {node: view.fenced_at(node) for node in view.apart}
    for node, end in ends.items():
        if end <= now:
            return f"{view.name(node)} was lost", math.inf
    wake = min(ends.values(), default=math.inf)
    if not view.unaccounted:
        return "", wake
    if now < view.blind_until:
        return "", min(wake, view.blind_until)
    return f"{view.unaccounted} node(s) were lost", math.inf


def _departure(view: View) -> str:
    node = min(view.going)
    row = view.rows.get(node) or view.reports[node]
    if node in view.wishes.drained:
        return f"{view.name(node)} was drained"
    return f"{view.name(node)} leaves: {row.leaving_reason or row.leaving}"


def _growth(view: View, now: float) -> Decision:
    """Close the round for newcomers: at once if they fill the job, else after the last call."""
    header, (_, most) = view.header, view.limits
    assert header is not None
    room = most - header.size
    if not view.newcomers or room <= 0 or view.unaccounted or view.settings.fixed_ranks:
        view.grows_since = math.inf
        return Decision(None)
    view.grows_since = min(view.grows_since, now)
    last_call = view.grows_since + view.settings.last_call_timeout
    if view.wishes.holds or (len(view.newcomers) < room and now < last_call):
        return Decision(None, math.inf if view.wishes.holds else last_call)
    count = min(room, len(view.newcomers))
    names = view.name(min(view.newcomers)) if count == 1 else f"{count} nodes"
    return Decision(Close(header.number, f"{names} joined"))


# ---- a round is closing


def _change(view: View, now: float) -> Decision:
    header = view.header
    assert header is not None
    if len(view.succeeded) == header.size:
        return _conclude("succeeded", 0, "all workers succeeded")
    wake = _fenced(view, now)
    if wake > now:
        return Decision(None, wake)
    changed = view.apart or view.going or view.dropped or view.unaccounted
    if not view.failures or changed:
        return _after_departures(view, now)
    return _after_failure(view, now)


def _fenced(view: View, now: float) -> float:
    """When no worker of the round can run any more, as far as is known."""
    if view.inside or not view.listed_since_close:
        return math.inf
    wake = max((view.fenced_at(node) for node in view.apart), default=now)
    return max(wake, view.blind_until) if view.unaccounted else wake


def _after_departures(view: View, now: float) -> Decision:
    there = sum(map(view.stays, view.rows))
    if there >= view.limits[0]:
        return _form(view, now, _next(view), view.history)
    for node in sorted(view.going):
        row = view.reports.get(node)
        if row and row.leaving in ("preempted", "stopped"):
            reason = f"{_departure(view)}; fewer than {view.limits[0]} nodes are left"
            return _conclude(cast(Outcome, row.leaving), row.leaving_code, reason)
    return _too_few(view, now, there)


def _next(view: View) -> int:
    return max(view.header.number if view.header else -1, view.claimed) + 1


def _after_failure(view: View, now: float) -> Decision:
    header, cause = view.header, _root_cause(view)
    assert header is not None
    sequel = judge(view.max_restarts, view.history, cause.startup)
    if sequel != "restart":
        return _failed(view, cause, sequel)
    ready = view.closed_at + header.delay
    if now < ready:
        return Decision(None, ready)
    history = following(view.history, cause.startup, cause.seconds)
    there = sum(map(view.stays, view.rows))
    if there < view.limits[0]:
        return _too_few(view, now, there)
    return _form(view, now, _next(view), history)


def _failed(view: View, cause: NodeRow, sequel: Sequel) -> Decision:
    code = exit_codes.HUNG if cause.outcome == "hung" else cause.code
    if sequel == "budget spent":
        code = exit_codes.BUDGET_SPENT
    return _conclude(cast(Outcome, cause.outcome), code, _describe(view, cause), sequel)


def _root_cause(view: View) -> NodeRow:
    """The report that the others most likely follow from; of equal ones the first."""
    reports = [view.reports[node] for node in view.failures]
    return min(reports, key=_remoteness)


def _remoteness(row: NodeRow) -> tuple[bool, bool, bool]:
    """How likely it is that a failure follows from another one."""
    return row.follows, row.signo not in FIRST_CAUSES, row.outcome == "hung"


def _describe(view: View, cause: NodeRow) -> str:
    what = cause.cause or ("workers hung" if cause.outcome == "hung" else "workers failed")
    return f"{view.name(cause.node)}: {what}"
