"""Finds the steps of a record: by its notes, else by what repeats in it, else by the clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from torsh_runtime.monitoring.joining import Call
from torsh_runtime.monitoring.notes import Note

WINDOW = 1.0
"""Seconds of a step where nothing else shows steps."""
_ROUNDS = 3
"""The number of times that a pattern has to be seen."""


class Span(NamedTuple):
    """A step of one rank."""

    number: int
    """Number of the step, which is equal on all ranks."""
    begin: float
    end: float


Source = Literal["notes", "pattern", "windows"]


def spans(
    calls: Mapping[int, Sequence[Call]], notes: Mapping[int, Sequence[Note]]
) -> tuple[Source, dict[int, list[Span]]]:
    """Return each rank's whole steps, ascending, and how they were found."""
    if any(note.kind == "step" for of_rank in notes.values() for note in of_rank):
        return "notes", {rank: noted_spans(notes.get(rank, ())) for rank in calls}
    repeated = {rank: repeated_spans(held) for rank, held in calls.items()}
    if repeated and all(repeated.values()):
        return "pattern", repeated
    return "windows", {rank: _windows(held) for rank, held in calls.items()}


def noted_spans(notes: Sequence[Note]) -> list[Span]:
    """Return the steps between two notes of steps. Of a step that was taken twice the later one
    counts."""
    begun = sorted(
        (note.time, note.value)
        for note in notes
        if note.kind == "step" and math.isfinite(note.time) and abs(note.value) < 1 << 53
    )
    found = {
        int(number): Span(int(number), begin, end)
        for (begin, number), (end, _) in pairwise(begun)
        if end > begin
    }
    return sorted(found.values(), key=lambda span: span.begin)


def repeated_spans(calls: Sequence[Call]) -> list[Span]:
    """Return the steps of the pattern in which collectives repeat, as in training, or [] without
    one. A step begins where the first group of the pattern has had a whole number of them."""
    held = [call for call in calls if call.key is not None and call.key[0] == "all"]
    held = [call for call in held if call.operation.operation != "wait"]
    period = _period([_likeness(call) for call in held])
    if not period:
        return []
    group = min(call.operation.group for call in held[-period:])
    count = sum(call.operation.group == group for call in held[-period:])
    begun = [
        (call.operation.sequence // count, call.left)
        for call in held
        if call.operation.group == group and call.operation.sequence % count == 0
    ]
    return [
        Span(number, begin, end)
        for (number, begin), (after, end) in pairwise(begun)
        if after == number + 1 and end > begin
    ]


def _likeness(call: Call) -> object:
    operation = call.operation
    return operation.operation, operation.group, operation.elements, operation.dtype


def _period(signs: Sequence[object]) -> int:
    """Return the length of the pattern in which they end, or 0 if there is none, or it is too
    new."""
    if not signs:
        return 0
    last = signs[-1]
    for period in range(1, len(signs) // _ROUNDS + 1):
        if signs[-1 - period] == last and signs[-period:] == signs[-2 * period : -period]:
            run = _run(signs, period)
            if run >= max((_ROUNDS - 1) * period, len(signs) // 2):
                return period
    return 0


def _run(signs: Sequence[object], period: int) -> int:
    """Return how many at the end are equal to what came a period before."""
    for run, place in enumerate(range(len(signs) - 1, period - 1, -1)):
        if signs[place] != signs[place - period]:
            return run
    return len(signs) - period


def _windows(calls: Sequence[Call]) -> list[Span]:
    if not calls:
        return []
    first = math.ceil(calls[0].entered / WINDOW)
    last = math.floor(max(call.left for call in calls) / WINDOW)
    return [
        Span(number, number * WINDOW, (number + 1) * WINDOW)
        for number in range(max(first, last - 1024), last)
    ]
