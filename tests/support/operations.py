"""Operations and notes for tests of what is made of records."""

from __future__ import annotations

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Note


def operation(
    number: int,
    entered: float,
    came: float | None = None,
    left: float | None = None,
    name: str = "all_reduce",
    **facts: object,
) -> Operation:
    """One of the default group with four ranks, of which the number in its group is the same."""
    made = Operation(
        number=number,
        operation=name,
        dtype="float32",
        reduction="SUM",
        elements=8,
        nbytes=32,
        root=-1,
        arrays=0,
        group=0,
        ranks=4,
        sequence=number,
        state="running" if left is None else "done",
        entered=entered,
        came=came,
        left=left,
    )
    return made._replace(**facts)  # type: ignore[arg-type]


def note(kind: str, time: float, name: str = "", value: float = 0.0, thread: int = 0) -> Note:
    return Note(0, kind, name, time, value, thread)
