"""What a worker's status page says of where it stood, as root causes are found from."""

from __future__ import annotations

from torshrun.failure.standing import Standing
from torshrun.health.pages import WorkerStatus
from torshrun.health.report import numbered


def standing(status: WorkerStatus) -> Standing | None:
    """Where the worker stood; None if it has noted no collective."""
    last = status.collective
    if last is None:
        return None
    return Standing(
        call=last.operation if last.active else "",
        full=numbered(last) if last.active else "",
        last=str(last),
        group=last.group,
        sequence=last.sequence,
        entered={each.group: each.sequence for each in status.collectives},
    )
