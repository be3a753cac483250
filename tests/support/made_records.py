"""Records of a job that never ran: ranks work, meet, and compute while operations go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from support.operations import operation as made

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Group, Note


@dataclass
class MadeRecord:
    """What one rank would have noted."""

    operations: list[Operation] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    def note(self, kind: str, moment: float, name: str = "", value: float = 0.0) -> None:
        self.notes.append(Note(len(self.notes), kind, name, moment, value, 0))


def operation(
    name: str = "all_reduce",
    *,
    number: int = 0,
    sequence: int = 0,
    entered: float,
    came: float | None = None,
    left: float | None = None,
    ranks: int = 2,
    group: int = 0,
    root: int = -1,
    elements: int = 8,
    in_background: bool = False,
    awaited: int | None = None,
) -> Operation:
    order = {"sequence": sequence, "in_background": in_background, "awaited": awaited}
    sizes = {"elements": elements, "nbytes": 4 * elements}
    place = {"ranks": ranks, "group": group, "root": root}
    return made(number, entered, came, left, name, **order, **sizes, **place)


Work = Callable[[int, int], float]
"""Seconds of own work by rank and step."""


@dataclass
class MadeJob:
    """Steps of a section "data" and work, then an all_reduce; with `overlap` one that goes on while
    the rank works on, before another that it waits in."""

    ranks: int
    work: Work
    data: Work = lambda rank, step: 0.005
    move: float = 0.002
    overlap: float = 0.0
    """Seconds of work after the operation in the background has begun; 0 is no such operation."""
    background: float = 0.0
    """Seconds that it moves."""
    knows_when_all_came: bool = True
    is_noted: bool = True

    def run(self, steps: int, first: int = 0, begin: float = 1000.0) -> Mapping[int, MadeRecord]:
        records = {rank: MadeRecord() for rank in range(self.ranks)}
        now = dict.fromkeys(records, begin)
        sequence = 0
        for step in range(first, first + steps):
            for rank, record in records.items():
                if self.is_noted:
                    record.note("step", now[rank], value=step)
                    record.note("begin", now[rank], "data")
                now[rank] += self.data(rank, step)
                if self.is_noted:
                    record.note("end", now[rank], "data")
                now[rank] += self.work(rank, step)
            if self.overlap:
                ended = self._meet(records, now, sequence, self.background, in_background=True)
                now = {rank: moment + self.overlap for rank, moment in now.items()}
                for rank, record in records.items():
                    left = max(now[rank], ended)
                    number = len(record.operations)
                    wait = operation(
                        "wait",
                        number=number,
                        sequence=sequence,
                        entered=now[rank],
                        left=left,
                        awaited=number - 1,
                    )
                    record.operations.append(wait)
                    now[rank] = left
                sequence += 1
            now = dict.fromkeys(now, self._meet(records, now, sequence, self.move))
            sequence += 1
        for rank, record in records.items():
            if self.is_noted:
                record.note("step", now[rank], value=first + steps)
        return records

    def _meet(
        self,
        records: Mapping[int, MadeRecord],
        now: Mapping[int, float],
        sequence: int,
        move: float,
        *,
        in_background: bool = False,
    ) -> float:
        came = max(now.values())
        for rank, record in records.items():
            record.operations.append(
                operation(
                    number=len(record.operations),
                    sequence=sequence,
                    entered=now[rank],
                    came=came if self.knows_when_all_came else None,
                    left=came + move,
                    ranks=self.ranks,
                    elements=1024 if in_background else 8,
                    in_background=in_background,
                )
            )
        return came + move
