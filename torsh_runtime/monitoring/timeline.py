"""What a rank recorded, as events of Chrome's trace format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Note

Event = dict[str, Any]


def events_of(rank: int, operations: Iterable[Operation], notes: Iterable[Note]) -> Iterator[Event]:
    """The events of one rank: a process, whose times are in microseconds."""
    yield {"ph": "M", "name": "process_name", "pid": rank + 1, "args": {"name": f"rank {rank}"}}
    for each in operations:
        if each.left is not None:
            yield {
                "ph": "X",
                "name": each.operation,
                "pid": rank + 1,
                "tid": 1,
                "ts": each.entered * 1e6,
                "dur": max(each.left - each.entered, 0.0) * 1e6,
                "args": {"bytes": each.nbytes, "sequence": each.sequence},
            }
    for note in notes:
        at = {"pid": rank + 1, "tid": note.thread, "ts": note.time * 1e6}
        if note.kind in ("begin", "end"):
            yield {**at, "ph": note.kind[0].upper(), "name": note.name}
        elif note.kind == "step":
            yield {**at, "ph": "i", "name": f"step {note.value:g}", "s": "p"}
        else:
            yield {**at, "ph": "C", "name": note.name, "args": {"value": note.value}}
