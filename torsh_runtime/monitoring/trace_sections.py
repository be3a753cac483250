"""Converts notes of a worker to trace events: steps and sections within each other, and
counters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torsh_runtime.monitoring.notes import Note
from torsh_runtime.monitoring.trace_events import Event, Sheet, Timed, written

_STEP, _SECTION = "step", "section"


def section_events(sheet: Sheet, notes: Sequence[Note]) -> Iterator[Timed]:
    """Yield the events of all threads, in the order of time. A section in which another one ends is
    shown as two: it ends there, and is continued. Those that have not ended do so in the end
    ("running")."""
    return _Sections(sheet).of(notes)


class _Sections:
    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._opened: dict[int, list[Event]] = {}
        """Sections that have begun and not ended by thread, the innermost last."""

    def of(self, notes: Sequence[Note]) -> Iterator[Timed]:
        sheet, last, before = self._sheet, -1, None
        is_shown = False
        for note in sorted(notes, key=_time):
            now = sheet.when(note.time)
            if now is None or now > sheet.until:
                continue
            if now > sheet.since and not is_shown:
                is_shown = True
                yield from self._open_all()
            missing = note.number - last - 1 if before is not None else 0
            last = note.number
            made: list[Timed] = []
            if missing > 0 and before is not None:  # the open sections are not known
                made += self._close_all(max(before, sheet.since))
                made.append(sheet.missing(now, now, missing, "notes"))
            before = now
            made += self._note(note, now)
            yield from made if is_shown else ()
        if not is_shown:
            yield from self._open_all()
        yield from self._close_all(sheet.until, running=True)

    def _note(self, note: Note, now: int) -> Iterator[Timed]:
        sheet, tid = self._sheet, self._sheet.thread(note.thread).tid
        if note.kind == "scalar":
            if math.isfinite(note.value):
                yield sheet.timed(now, sheet.counter(now, note.name, note.value), 0)
            else:
                told = sheet.failure(now, f"{note.name} is {note.value}", tid, {})
                yield sheet.timed(now, told, 0)
            return
        stack = self._opened.setdefault(note.thread, [])
        is_step = note.kind == "step"
        name = f"step {note.value:.0f}" if is_step else note.name
        begun = sheet.event("B", now, name, _STEP if is_step else _SECTION, tid)
        above: list[Event] = []
        if note.kind != "begin":
            place = _innermost(stack, begun["cat"], None if is_step else name)
            if place is not None:
                above = stack[place + 1 :]
                yield from self._close(stack, place, now)
        if note.kind != "end":
            above = [begun, *above]
        for each in above:
            again = each if each is begun else _continued(each, now)
            stack.append(again)
            yield sheet.timed(now, again, 0)

    def _open_all(self) -> Iterator[Timed]:
        """Yield the begins of sections that had begun before the first event that is shown."""
        since = self._sheet.since
        for stack in self._opened.values():
            for place, each in enumerate(stack):
                if each["ts"] < written(since):
                    stack[place] = _continued(each, since)
                yield self._sheet.timed(since, stack[place], 0)

    def _close(
        self, stack: list[Event], place: int, now: int, *, running: bool = False
    ) -> Iterator[Timed]:
        while len(stack) > place:
            begun = stack.pop()
            ended = self._sheet.event("E", now, begun["name"], begun["cat"], begun["tid"])
            if running:
                ended["args"] = {"running": True}
            yield self._sheet.timed(now, ended, 0)

    def _close_all(self, now: int, *, running: bool = False) -> Iterator[Timed]:
        for stack in self._opened.values():
            yield from self._close(stack, 0, now, running=running)


def _continued(begun: Event, now: int) -> Event:
    return {**begun, "ts": written(now), "args": {"continued": True}}


def _innermost(stack: Sequence[Event], category: str, name: str | None) -> int | None:
    """Return the place of the innermost event of this category and name, of which None is any."""
    for place in range(len(stack) - 1, -1, -1):
        if stack[place]["cat"] == category and name in (None, stack[place]["name"]):
            return place
    return None


def _time(note: Note) -> float:
    return note.time if math.isfinite(note.time) else 0.0
