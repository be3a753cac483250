"""Reads from a worker's status page where it stood, for finding root causes."""

from __future__ import annotations

from torshrun.failure.blocked_at import BlockedAt
from torshrun.health.pages import WorkerStatus
from torshrun.health.report import numbered


def standing(status: WorkerStatus) -> BlockedAt | None:
    """Return where the worker stood; None if it has noted no collective."""
    last, awaited = status.collective, status.awaited
    if last is None:
        return None
    call, full = (last.operation, numbered(last)) if last.active else ("", "")
    if awaited is not None and not last.active:
        call, full = "recv", f"recv ({awaited.what})"
        if awaited.call:
            call, full = awaited.call.partition("(")[0], awaited.call
    return BlockedAt(
        call=call,
        full=full,
        instead=awaited.instead if awaited and not last.active else -1,
        awaited=awaited.rank if awaited and not last.active else -1,
        mesh=status.place,
        doing=status.doing,
        last=str(last),
        group=last.group,
        sequence=last.sequence,
        entered={each.group: each.sequence for each in status.collectives},
    )
