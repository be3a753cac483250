"""Chrome's trace events, and the tracks of a rank that contain them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

Event = dict[str, Any]
"""An event of Chrome's trace format: times are in microseconds."""
Timed = tuple[int, int, int, Event]
"""Time in nanoseconds; order of events of one moment; a number that makes it unique; the event."""

FAR = 1e7
"""Seconds before the moment of reading; earlier times are nonsense."""
NEAR = 5_000
"""Nanoseconds by which times of the processor's clock may differ from those of notes."""
PROGRAM, GROUPS, MISSING = 0, 100_000, 200_000
"""The order in which tracks are shown."""
_BUCKET = 10_000_000
"""Nanoseconds of which a value of bytes/s is the mean."""
GRAIN = 100
"""Nanoseconds to which times are rounded when they are written."""
_MOST_TRACKS = 256
_TIDS = 1000
"""Numbers of tracks that a rank has for itself."""


def process_of(rank: int) -> int:
    """Return the number of a rank's process in the trace."""
    return rank + 1


def track_of(rank: int, place: int) -> int:
    """Return the number of the place-th track of a rank, of which it has less than 1,000."""
    return process_of(rank) * _TIDS + place


def written(nanoseconds: int) -> float:
    """Return the time in microseconds, as a trace has it. With more digits a trace would be a fifth
    larger."""
    return round(nanoseconds / GRAIN) / 10


def name_events(rank: int, node: str = "") -> list[Event]:
    """Return the events that name the process of a rank, and set its position."""
    name = f"rank {rank} (node {node})" if node else f"rank {rank}"
    pid = process_of(rank)
    return [
        named(pid, "process_name", name=name),
        named(pid, "process_sort_index", sort_index=rank),
    ]


def instant(time: float, name: str, args: Mapping[str, object], rank: int | None = None) -> Event:
    """Return an event of the whole job, or of one rank, at that second."""
    where: Event = {"s": "g", "pid": 0, "tid": 0}
    if rank is not None:
        where = {"s": "p", "pid": process_of(rank), "tid": track_of(rank, 0)}
    facts = {"name": name, "cat": "job", "args": {**args}}
    return {"ph": "i", "ts": round(time * 1e6, 3), **where, **facts}


def named(pid: int, kind: str, tid: int | None = None, **args: object) -> Event:
    """Return an event that names a process or a track, or sets its position."""
    where = {"pid": pid} if tid is None else {"pid": pid, "tid": tid}
    return {"ph": "M", "name": kind, **where, "args": args}


class Track:
    """Slices that are beside or within each other."""

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self._ends: list[int] = []

    def fit(self, begin: int, end: int, middle: int | None) -> tuple[int, int] | None:
        """Place the slice, which may be shortened at its ends by what clocks differ. Return None if
        it does not fit. `middle`: where it is cut in two. Slices are to be given in the order in
        which they begin."""
        while self._ends and self._ends[-1] <= begin + NEAR:
            begin = max(begin, self._ends.pop())
        end = max(begin, end)
        if self._ends and end > self._ends[-1] + NEAR:
            return None
        if self._ends:
            end = max(begin, min(end, self._ends[-1]))
        self._ends.append(end)
        if middle is not None and begin < middle < end:
            self._ends.append(middle)
        return begin, end


class Tracks:
    """The tracks of one rank. Each gets its name when it is first used."""

    def __init__(self, rank: int) -> None:
        self._rank, self._pid = rank, process_of(rank)
        self._found: dict[tuple[object, int], Track] = {}
        self._fresh: list[Event] = []

    def at(self, key: object, name: str, order: int, lane: int = 0) -> Track:
        """Return the lane-th track of this key. Where there are too many the last track has the
        rest."""
        found = self._found.get((key, lane))
        if found is None:
            tid = track_of(self._rank, min(len(self._found), _MOST_TRACKS) + 1)
            found = self._found[key, lane] = Track(tid)
            self._fresh += [
                named(self._pid, "thread_name", tid, name=name),
                named(self._pid, "thread_sort_index", tid, sort_index=order),
            ]
        return found

    def with_room(
        self, key: object, name: str, order: int, span: tuple[int, int], middle: int | None
    ) -> tuple[Track, int, int]:
        """Return the first track of this key that the slice fits on, and the slice as it fits."""
        for lane in range(_MOST_TRACKS):
            track = self.at(key, name, order, lane)
            if fitting := track.fit(*span, middle):
                return track, *fitting
        return track, *span

    def fresh(self) -> Iterator[Event]:
        """Yield the names of tracks that are new since the last call."""
        found, self._fresh = self._fresh, []
        yield from found


class Sheet:
    """The part of time that is shown of one rank, and the tracks that its events are put on."""

    def __init__(self, rank: int, since: float, until: float, shift: float) -> None:
        """Create a sheet. Both times are the trace's; `shift` turns the rank's times into these."""
        self.rank, self.pid = rank, process_of(rank)
        self.until = round(until * 1e9)
        self.since = round(min(max(since, until - FAR), until + 1) * 1e9)
        self.tracks = Tracks(rank)
        self._shift = shift
        self._count = itertools.count()

    def when(self, time: float) -> int | None:
        """Return the time in nanoseconds of the trace, or None for nonsense."""
        if not math.isfinite(time):
            return None
        found = round((time + self._shift) * 1e9)
        return found if abs(found - self.until) < FAR * 1e9 else None

    def timed(self, time: int, event: Event, order: int = 1) -> Timed:
        return time, order, next(self._count), event

    def event(self, phase: str, time: int, name: str, category: str, tid: int) -> Event:
        where = {"pid": self.pid, "tid": tid}
        return {"ph": phase, "ts": written(time), **where, "name": name, "cat": category}

    def counter(self, time: int, name: str, value: float) -> Event:
        where = {"ts": written(time), "pid": self.pid}
        return {"ph": "C", **where, "name": name, "args": {"value": value}}

    def failure(self, time: int, name: str, tid: int, args: Event) -> Event:
        return {**self.event("i", time, name, "failure", tid), "s": "p", "args": args}

    def missing(self, begin: int, end: int, count: int, what: str) -> Timed:
        """Return an event that says that `count` notes or operations are not recorded."""
        tid = self.tracks.at("missing", "not recorded", MISSING).tid
        name = f"{count} {what} of rank {self.rank} are missing here"
        event = self.event("X", begin, name, "missing", tid)
        return self.timed(
            begin, {**event, "dur": round(written(end) - event["ts"], 1), "args": {"count": count}}
        )

    def thread(self, number: int) -> Track:
        """Return the track of a thread of the program; 0 is the main one."""
        name = f"thread {number}" if number else "main thread"
        return self.tracks.at(("thread", number), name, PROGRAM + min(number, GROUPS - 2))


class Rate:
    """Bytes a second, as values of a counter."""

    LATE = 2 * _BUCKET
    """Nanoseconds for which a value may come after what happened in its time."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._bytes: dict[int, int] = {}

    def add(self, time: int, nbytes: int) -> None:
        bucket = time // _BUCKET
        self._bytes[bucket] = self._bytes.get(bucket, 0) + nbytes

    def until(self, time: float) -> Iterator[Timed]:
        """Yield the values of the time before. The value after the last of them is 0."""
        for bucket in sorted(each for each in self._bytes if (each + 1) * _BUCKET < time):
            yield self._value(bucket, self._bytes.pop(bucket) * 10**9 // _BUCKET)
            if bucket + 1 not in self._bytes:
                yield self._value(bucket + 1, 0)

    def _value(self, bucket: int, value: int) -> Timed:
        begin = max(bucket * _BUCKET, self._sheet.since)
        return self._sheet.timed(begin, self._sheet.counter(begin, "bytes/s", value))
