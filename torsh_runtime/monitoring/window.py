"""Computes how a rank spent a stretch of time, by its record: own work, waiting, moving bytes,
steps. Pure.

Times are in the record's seconds. What a record holds may be nonsense: whatever it is, a share is
between 0 and the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torsh_runtime.monitoring.layout import ENTRIES, MESSAGES, NO_OPERATIONS, Operation
from torsh_runtime.monitoring.notes import Note
from torsh_runtime.monitoring.pace import PROGRESS, Pace, pace_of

NO_TURNS = (*MESSAGES, *NO_OPERATIONS)
"""Recorded names that are no operations in which all ranks of a group take part."""
_MOST_THREADS, _DEEPEST = 64, 64
_LATE = 2.0
"""The multiple of the usual time that a step may take before it makes the pace less."""

Span = tuple[float, float]
Records = Mapping[int, Sequence[Operation]]
"""Operations of each rank, by one clock."""


class Spent(NamedTuple):
    """The seconds of a window in which a rank worked, waited and moved bytes."""

    covered: float
    """The part of the window that its record tells of; 0 is none."""
    own: float
    """Seconds in no operation that its program waits for."""
    waited: float
    """Seconds in operations until all others had come, as far as that is known."""
    moved: float
    """Other seconds in operations."""
    nbytes: int
    """Bytes of its arrays in operations that ended within the window."""

    def share(self, seconds: float) -> float:
        """Return the part of the covered time that these seconds are, or 0 if nothing is
        covered."""
        return seconds / self.covered if self.covered > 0 else 0.0


def spent(operations: Sequence[Operation], begin: float, end: float) -> Spent:
    """Return how the rank spent the time from `begin` to `end`, or from the first operation that
    is held: before it there were others that are not held any more, or the rank had not come so
    far."""
    if not operations:
        return Spent(0.0, 0.0, 0.0, 0.0, 0)
    first = operations[-1].number - ENTRIES  # of older ones only those that still run are held
    begin = max(begin, min(each.entered for each in operations if each.number > first))
    covered = max(end - begin, 0.0)
    background = _in_background(operations)
    blocked = [each for each in operations if not each.in_background]
    inside = _length(((each.entered, _left(each, end)) for each in blocked), begin, end)
    spans = (_waiting(each, background, end) for each in blocked)
    waited = _length(filter(None, spans), begin, end)
    nbytes = sum(each.nbytes for each in operations if begin < _left(each, math.inf) <= end)
    return Spent(covered, covered - inside, waited, inside - waited, nbytes)


def _in_background(operations: Iterable[Operation]) -> dict[int, Operation]:
    """Return the operations that a `wait` may be for, by their numbers."""
    return {each.number: each for each in operations if each.in_background}


def awaited_in(operation: Operation, background: Mapping[int, Operation]) -> Operation | None:
    """Return the operation that the program waits for: the operation itself, or that of a `wait`.
    None if it is not held."""
    if operation.operation != "wait":
        return operation
    return None if operation.awaited is None else background.get(operation.awaited)


def _left(operation: Operation, end: float) -> float:
    return end if operation.left is None else operation.left


def _waiting(operation: Operation, background: Mapping[int, Operation], end: float) -> Span | None:
    """Return the time in which the program waited for other ranks in it. None if that is not known,
    or never."""
    awaited = awaited_in(operation, background)
    if awaited is None:
        return None
    left = _left(operation, end)
    if awaited.came is not None:
        return operation.entered, min(awaited.came, left)
    return (operation.entered, left) if awaited.left is None else None


def _length(spans: Iterable[Span], begin: float, end: float) -> float:
    """Return the seconds that the spans cover together between the two."""
    total, reached = 0.0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            total += stop - start
            reached = stop
    return total


# ---- for whom it waited


def arrived(records: Records) -> dict[int, list[Operation]]:
    """Return the records with `came` set for running operations where all ranks' records together
    show it: a stopped process notes nothing of it."""
    entered = _entered(records)
    return {
        rank: [_arrived(each, entered.get((each.group, each.sequence), {})) for each in held]
        for rank, held in records.items()
    }


def _arrived(operation: Operation, entered: Mapping[int, float]) -> Operation:
    goes_on = operation.left is None and operation.came is None
    is_known = operation.operation not in NO_TURNS and len(entered) == operation.ranks > 0
    return operation._replace(came=max(entered.values())) if goes_on and is_known else operation


def _entered(records: Records) -> dict[tuple[int, int], dict[int, float]]:
    """Return, by group and sequence, when each rank has entered."""
    found: dict[tuple[int, int], dict[int, float]] = {}
    for rank, held in records.items():
        for each in held:
            if each.operation not in NO_TURNS:
                found.setdefault((each.group, each.sequence), {})[rank] = each.entered
    return found


def waited_for(records: Records, begin: float, end: float) -> dict[int, dict[int, float]]:
    """Return for each rank the seconds of the window in which it has waited for each other rank:
    the one that came last to the operation, or has not come yet. Messages are left out."""
    entered = _entered(records)
    reached: dict[int, dict[int, int]] = {}
    for rank, held in records.items():
        for each in held:
            if each.operation not in NO_TURNS:
                reached.setdefault(each.group, {})[rank] = each.sequence
    late: dict[tuple[int, int], int] = {}
    found: dict[int, dict[int, float]] = {}
    for rank, held in records.items():
        background, own = _in_background(held), found.setdefault(rank, {})
        for each in held:
            span = None if each.in_background else _waiting(each, background, end)
            seconds = _length([span], begin, end) if span else 0.0
            awaited = awaited_in(each, background)
            if seconds and awaited and awaited.operation not in NO_TURNS:
                key = awaited.group, awaited.sequence
                if key not in late:
                    late[key] = _last(entered.get(key, {}), reached.get(key[0], {}), key[1])
                own[late[key]] = own.get(late[key], 0.0) + seconds
    return {
        rank: {who: seconds for who, seconds in own.items() if who not in (-1, rank)}
        for rank, own in found.items()
    }


def _last(entered: Mapping[int, float], reached: Mapping[int, int], sequence: int) -> int:
    """Return the rank that came last, or has not come yet; -1 is not known."""
    missing = [rank for rank, last in reached.items() if last < sequence]
    if missing:
        return min(missing, key=lambda rank: (reached[rank], rank))
    return max(entered, key=lambda rank: entered[rank]) if len(entered) > 1 else -1


# ---- what it does


class Doing(NamedTuple):
    """The state of a rank at one moment."""

    operation: Operation | None
    """The operation that its program is in; None is none."""
    awaited: Operation | None
    """The operation that is waited for: `operation` itself, or that of a `wait`, if it is held."""
    sections: tuple[str, ...]
    """Open sections of its main thread, the outermost first."""
    since: float | None
    """Time since which it is in the operation, else in the innermost section, else out of the last
    operation. None is unknown."""


def doing(operations: Sequence[Operation], notes: Sequence[Note]) -> Doing:
    """Return what the rank does when its record ends."""
    sections = Sections()
    for note in notes:
        sections.take(note)
    stack = sections.stack()
    names = tuple(name for name, _ in stack)
    inside = [each for each in operations if each.left is None and not each.in_background]
    if inside:  # a wait, or what a batch is made of, began last
        awaited = awaited_in(inside[-1], _in_background(operations))
        return Doing(inside[-1], awaited, names, inside[-1].entered)
    ended = max((each.left for each in operations if each.left is not None), default=None)
    return Doing(None, None, names, stack[-1][1] if stack else ended)


class Sections:
    """The sections that a rank is in, note by note, and the time that it spent in each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Seconds of sections that have ended, by name. A section within another of its name is not
        counted."""
        self._stacks: dict[int, list[tuple[str, float]]] = {}

    def take(self, note: Note) -> None:
        """Take the next note. An end whose begin is not known changes nothing."""
        if note.kind == "begin":
            if note.thread in self._stacks or len(self._stacks) < _MOST_THREADS:
                stack = self._stacks.setdefault(note.thread, [])
                if len(stack) < _DEEPEST:
                    stack.append((note.name, note.time))
        elif note.kind == "end":
            self._end(self._stacks.get(note.thread, []), note)

    def _end(self, stack: list[tuple[str, float]], note: Note) -> None:
        names = [name for name, _ in stack]
        if note.name in names:
            place = len(names) - 1 - names[::-1].index(note.name)
            began = stack[place][1]
            del stack[place:]
            if note.name not in names[:place]:
                known = self.seconds.get(note.name, 0.0)
                self.seconds[note.name] = known + max(note.time - began, 0.0)

    def stack(self, thread: int = 0) -> Sequence[tuple[str, float]]:
        """Return the open sections and since when they are open, the outermost first."""
        return tuple(self._stacks.get(thread, ()))

    def running(self, now: float) -> dict[str, float]:
        """Return for how long open sections have been open so far, by name."""
        found: dict[str, float] = {}
        for stack in self._stacks.values():
            for name, began in dict(reversed(stack)).items():
                found[name] = found.get(name, 0.0) + max(now - began, 0.0)
        return found

    def forget(self) -> None:
        """Forget which sections are open, since notes were lost."""
        self._stacks.clear()


# ---- how far it is


def present_pace(notes: Sequence[Note], now: float) -> Pace:
    """Return the pace that the notes show, which falls while the next step is late."""
    found = pace_of(notes)
    rate, last = found.per_second, max((note.time for note in notes if _counts(note)), default=now)
    if not rate or (now - last) * rate < _LATE:
        return found
    part = 1 / ((now - last) * rate)
    samples = found.samples_per_second
    return found._replace(
        per_second=rate * part,
        samples_per_second=None if samples is None else samples * part,
    )


def _counts(note: Note) -> bool:
    return note.kind == "step" or (note.kind == "scalar" and note.name == PROGRESS)


# ---- what there was before


def operations_until(operations: Iterable[Operation], end: float) -> list[Operation]:
    """Return the operations as the record held them at that moment, as far as it still does."""
    return [
        each._replace(
            came=each.came if each.came is not None and each.came <= end else None,
            left=each.left if each.left is not None and each.left <= end else None,
            state="running" if each.left is None or each.left > end else each.state,
        )
        for each in operations
        if each.entered <= end
    ]


def notes_until(notes: Iterable[Note], end: float) -> list[Note]:
    """Return the notes that the record held at that moment, as far as it still does."""
    return [note for note in notes if note.time <= end]
