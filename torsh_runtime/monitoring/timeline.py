"""The timeline of a job: what ranks recorded, as events of Chrome's trace format.

Perfetto (https://ui.perfetto.dev) shows it. Each rank is a process there, with these tracks:

    main thread     steps and sections, and within them the operations and waits of that thread
    thread 1, …     sections of the program's other threads
    other threads   operations that cross sections of the main thread, so others have called them
    a group's name  operations that the group's own thread carried out
    not recorded    where operations are missing, which were overwritten before they were read

A collective has a slice "wait", until this rank knew that all had entered, and a slice "move" from
then on; one slice without such a word where a rank does not learn it. Where slices overlap there
are more tracks of the same name. What had not ended when the recording was read ends at that
moment, and says so ("running").
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from torsh_runtime.monitoring.layout import MESSAGES, Operation
from torsh_runtime.monitoring.notes import Group, Note
from torsh_runtime.monitoring.trace_events import (
    GRAIN,
    GROUPS,
    NEAR,
    PROGRAM,
    Event,
    Rate,
    Sheet,
    Timed,
    Track,
    written,
)
from torsh_runtime.monitoring.trace_sections import section_events

_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_LATE = 100_000_000
"""Nanoseconds by which a thread may come after another that has begun its operation later."""
_SKIPPED = 16
"""The numbers in a row that may be those of no operation."""
_MOST_AWAITED = 4096
"""Operations in the background whose tracks are remembered for those that wait."""


class Message(NamedTuple):
    """The part that a send and the recv that gets it have in common."""

    group: int
    sender: int
    """Rank of the group, as the next."""
    receiver: int
    sequence: int


def events_of(
    rank: int,
    operations: Iterable[Operation],
    notes: Iterable[Note],
    groups: Sequence[Group] = (),
    *,
    since: float = -math.inf,
    until: float | None = None,
    shift: float = 0.0,
    joined: Collection[Message] | None = None,
) -> Iterator[Event]:
    """Yield the events of one rank, in the order of time; trace_events.name_events() names it.

    operations, notes: in the order in which they began, as they are read.
    since: what ended before is left out, on the same clock.
    until: what began later is left out, and what had not ended when it was read ends there. None:
    when the last of them ended.
    shift: seconds that are added to all times.
    joined: messages of which both ends are known, as joined_messages() finds them: only these get
    an arrow. None: all.
    """
    noted = list(notes)
    if until is None:
        operations = list(operations)
        ends = (each.entered if each.left is None else each.left for each in operations)
        times = itertools.chain(ends, (note.time for note in noted))
        until = max(filter(math.isfinite, times), default=0.0)
    sheet = Sheet(rank, since + shift, until + shift, shift)
    sections = list(section_events(sheet, noted))
    carried_out = _Operations(sheet, groups, sections, joined).of(operations)
    for *_, event in heapq.merge(sections, carried_out):
        yield from sheet.tracks.fresh()
        yield event


def messages_of(
    rank: int, operations: Iterable[Operation], groups: Sequence[Group] = ()
) -> Iterator[tuple[str, Message]]:
    """Yield the messages that have come through, each with "send" or "recv"."""
    own = _own_ranks(rank, groups)
    for each in operations:
        if message := _message(each, own):
            yield each.operation, message


def joined_messages(found: Iterable[tuple[str, Message]]) -> set[Message]:
    """Return the messages of which both the send and the recv are among the messages_of() of all
    ranks."""
    ends: dict[str, set[Message]] = {kind: set() for kind in MESSAGES}
    for kind, message in found:
        ends[kind].add(message)
    return ends["send"] & ends["recv"]


class _Operations:
    """Makes the events of one rank's operations."""

    def __init__(
        self,
        sheet: Sheet,
        groups: Sequence[Group],
        sections: Sequence[Timed],
        joined: Collection[Message] | None,
    ) -> None:
        self._sheet, self._joined = sheet, joined
        self._names = {each.number: each.name for each in groups if each.name}
        self._own = _own_ranks(sheet.rank, groups)
        self._rate = Rate(sheet)
        self._background: dict[int | None, tuple[str, int, int]] = {}
        """Track and end of operations in the background, by their numbers."""
        main = sheet.thread(0).tid
        edges = (each for each in sections if each[3]["ph"] in "BE" and each[3]["tid"] == main)
        self._edges = [time for time, *_ in edges]
        """Times at which sections of the main thread begin and end."""

    def of(self, operations: Iterable[Operation]) -> Iterator[Timed]:
        """Yield the events of the operations, in the order of time."""
        sheet, last, ended = self._sheet, 0, 0
        settled = math.inf
        waiting: list[Timed] = []
        for each in operations:
            begin = sheet.when(each.entered)
            if begin is None or begin > sheet.until:
                continue
            # Long operations keep their entries, so numbers are missing between them.
            missing = each.number - last - 1 if settled <= begin else 0
            last = each.number
            end = self._end(each, begin)
            settled = min(settled, end)
            if end < sheet.since:
                continue
            begin = max(begin, sheet.since)
            if missing > _SKIPPED:
                gap = sheet.missing(
                    min(max(ended, sheet.since), begin), begin, missing, "operations"
                )
                heapq.heappush(waiting, gap)
            ended = max(ended, end)
            for event in self._operation(each, begin, end):
                heapq.heappush(waiting, event)
            yield from self._due(waiting, begin - _LATE)
        yield from self._due(waiting, math.inf)

    def _due(self, waiting: list[Timed], time: float) -> Iterator[Timed]:
        for value in self._rate.until(time):
            heapq.heappush(waiting, value)
        while waiting and waiting[0][0] <= time - Rate.LATE:
            yield heapq.heappop(waiting)

    def _end(self, each: Operation, begin: int) -> int:
        end = self._sheet.when(each.left) if each.left is not None else self._sheet.until
        return max(begin, end if end is not None else begin)

    def _operation(self, each: Operation, begin: int, end: int) -> Iterator[Timed]:
        sheet = self._sheet
        came = sheet.when(each.came) if each.came is not None else None
        track, begin, end = self._placed(each, begin, end, came)
        args = self._told(each)
        title = self._title(each)
        for part, start, stop in _parts(each, begin, came, end):
            name = f"{title} ({part})" if part else title
            slice_ = sheet.event("X", start, name, part or each.operation, track.tid)
            is_running = each.left is None and stop == end
            slice_["dur"] = round(written(stop) - slice_["ts"], 1)
            slice_["args"] = {**args, "running": True} if is_running else args
            yield sheet.timed(start, slice_)
        if each.state == "failed":
            failure = sheet.failure(end, f"{each.operation} failed", track.tid, args)
            yield sheet.timed(end, failure)
        elif each.left is not None and each.nbytes and each.operation != "wait":
            self._rate.add(end, each.nbytes)
        yield from self._arrows(each, begin, end, track.tid)

    def _placed(
        self, each: Operation, begin: int, end: int, came: int | None
    ) -> tuple[Track, int, int]:
        """Return the track, and the slice as it fits there."""
        key, name, order = ("thread", 0), "main thread", PROGRAM
        if each.in_background:
            key, name = ("group", each.group), self._group(each.group)
            order = GROUPS + bool(each.group)
        else:
            begin, end, is_apart = _within(self._edges, begin, end)
            if is_apart:
                key, name, order = ("threads", 0), "other threads", GROUPS - 1
        return self._sheet.tracks.with_room(key, name, order, (begin, end), came)

    def _told(self, each: Operation) -> Event:
        """Return the facts of an operation besides its name."""
        told: Event = {"number": each.sequence, "group": self._group(each.group)}
        if each.elements:
            call = [f"{each.dtype}[{each.elements}]"]
            call += [each.reduction] if each.operation in _REDUCING else []
            told |= {"call": ", ".join(call), "bytes": each.nbytes}
        if each.root >= 0:
            told["peer" if each.operation in MESSAGES else "root"] = each.root
        if each.path:
            told["path"] = each.path
        return told

    def _group(self, number: int) -> str:
        return self._names.get(number, f"group {number:x}" if number else "default group")

    def _title(self, each: Operation) -> str:
        awaited = None if each.awaited is None else self._background.get(each.awaited)
        return f"wait for {awaited[0]}" if awaited else each.operation

    def _arrows(self, each: Operation, begin: int, end: int, tid: int) -> Iterator[Timed]:
        """Yield the arrows from a send to its recv, and from an operation in the background to the
        one that waits for it."""
        message = _message(each, self._own)
        if message and (self._joined is None or message in self._joined):
            is_send = each.operation == "send"
            time = begin if is_send else max(begin, end - GRAIN)
            yield self._arrow("message", message, time, tid, is_send)
        if each.awaited in self._background:
            _, track, until = self._background[each.awaited]
            if until > begin:
                wait = (self._sheet.rank, each.number)
                yield self._arrow("awaited", wait, begin, track, True)
                yield self._arrow("awaited", wait, max(begin, end - GRAIN), tid, False)
        elif each.in_background:
            if len(self._background) >= _MOST_AWAITED:
                del self._background[next(iter(self._background))]
            self._background[each.number] = each.operation, tid, end

    def _arrow(self, kind: str, of: tuple[int, ...], time: int, tid: int, is_begin: bool) -> Timed:
        """Return one end of an arrow."""
        event = self._sheet.event("s" if is_begin else "f", time, kind, kind, tid)
        event["id"] = hash((len(kind), *of)) & ((1 << 52) - 1)
        if not is_begin:
            event["bp"] = "e"
        return self._sheet.timed(time, event, 2)


def _parts(each: Operation, begin: int, came: int | None, end: int) -> list[tuple[str, int, int]]:
    """Return slices: "wait", "move", or "" for one that may be both."""
    if came is None:
        return [("", begin, end)]
    middle = min(max(came, begin), end)
    return [("wait", begin, middle), ("move", middle, end)]


def _within(edges: Sequence[int], begin: int, end: int) -> tuple[int, int, bool]:
    """Return the slice without what exceeds a section's beginning or end, as far as clocks may
    differ, and whether it crosses one by more: then another thread has carried it out."""
    place = bisect_right(edges, begin)
    while place < len(edges) and edges[place] <= min(begin + NEAR, end):
        begin = edges[place]
        place += 1
    if place < len(edges) and edges[place] < end:
        if edges[place] < end - NEAR:
            return begin, end, True
        end = edges[place]
    return begin, end, False


def _message(each: Operation, own: dict[int, int]) -> Message | None:
    """Return the message. None for an operation that is none, has not come through, or whose ranks
    are unknown."""
    here = own.get(each.group)
    if each.operation not in MESSAGES or each.state == "failed" or here is None:
        return None
    if each.operation == "send":
        return Message(each.group, here, each.root, each.sequence)
    return Message(each.group, each.root, here, each.sequence) if each.left is not None else None


def _own_ranks(rank: int, groups: Sequence[Group]) -> dict[int, int]:
    """Return this rank's number in each of its groups."""
    found = {0: rank}
    for each in groups:
        if rank in each.members:
            found[each.number] = each.members.index(rank)
    return found
