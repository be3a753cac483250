"""Aligns recordings of several nodes on one clock. Pure.

What the agents know of the leader's clock is narrowed by what must be so: nobody leaves what waits
for all before the last has entered it, and nothing is received before it was sent. That alone tells
how far apart clocks are of which agents know nothing, or that refer to another leader.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torsh_runtime.monitoring.layout import MESSAGES, Operation
from torshrun.health.clocks import MOST_DRIFT, WANDER, Reading, Region
from torshrun.health.recordings import Dump, Record

_WAITS_FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter", "barrier")
_LEAVES_EARLY = ("nccl",)
"""Paths on which a call returns before anything has happened."""
_INFINITY = math.inf
_Key = tuple[object, ...]


class _Span(NamedTuple):
    """Holds what ranks tell of an operation, or of a message."""

    entered: float = -_INFINITY
    """The time when the last of them had begun it, if others wait for that."""
    left: float = _INFINITY
    """The time when the first of them knew that all had, or that the message had come."""

    def joined(self, other: _Span) -> _Span:
        return _Span(max(self.entered, other.entered), min(self.left, other.left))


_Spans = dict[_Key, _Span]


def aligned(dumps: Sequence[Dump]) -> list[Dump]:
    """Return the dumps in the same order, with all times in seconds before one moment.

    It is the latest moment that is kept, which `at` + `offset` of each says. A dump whose clock
    cannot be compared with the others' is unchanged, but for its offset, which is None.
    """
    found = _narrowed(dumps)
    pairs = [*zip(dumps, found, strict=True)]
    end = max((dump.at + known.offset for dump, known in pairs if known), default=0.0)
    return [_moved(dump, known, end) for dump, known in pairs]


def _moved(dump: Dump, known: Reading | None, end: float) -> Dump:
    if known is None:
        return dump._replace(offset=None)
    shift, rate = dump.at + known.offset - end, 1 + known.drift
    records = {rank: _on(record, shift, rate) for rank, record in dump.records.items()}
    at = dump.at - shift / rate
    known = known._replace(offset=end - at)
    return dump._replace(at=at, records=records).with_clock(dump.leader, known)


def _on(record: Record, shift: float, rate: float) -> Record:
    """Return the record with its times on another clock."""
    operations = [
        each._replace(
            entered=shift + each.entered * rate,
            came=None if each.came is None else shift + each.came * rate,
            left=None if each.left is None else shift + each.left * rate,
        )
        for each in record.operations
    ]
    notes = [note._replace(time=shift + note.time * rate) for note in record.notes]
    return record._replace(operations=operations, notes=notes)


# ---- the clocks


class _Placed:
    """The nodes that are on the common clock already."""

    def __init__(self) -> None:
        self.spans: _Spans = {}
        """The spans of these nodes, in seconds of that clock, as it is chosen."""
        self.sure: _Spans = {}
        """The spans, as late and as early as their clocks may be wrong."""

    def add(self, own: _Spans, at: float, clock: Reading) -> None:
        for key, (entered, left) in own.items():
            begin, end = _common(entered, at, clock), _common(left, at, clock)
            chosen = _Span(begin, end)
            sure = _Span(begin - _doubt(entered, clock), end + _doubt(left, clock))
            self.spans[key] = self.spans.get(key, _Span()).joined(chosen)
            self.sure[key] = self.sure.get(key, _Span()).joined(sure)


def _common(time: float, at: float, clock: Reading) -> float:
    return at + time + clock.offset + clock.drift * time if math.isfinite(time) else time


def _doubt(time: float, clock: Reading) -> float:
    return clock.bound_at(time) if math.isfinite(time) else 0.0


def _narrowed(dumps: Sequence[Dump]) -> list[Reading | None]:
    """Return what is known of one clock at each dump's moment; None where that is nothing."""
    leaders = Counter(dump.leader for dump in dumps if dump.reading)
    leader = leaders.most_common(1)[0][0] if leaders else ""
    known = [dump.reading if dump.leader == leader else None for dump in dumps]
    if dumps and not any(known):
        known[0] = Reading(0.0, 0.0)  # then it is this one's
    spans = [_spans(dump) for dump in dumps]
    found: list[Reading | None] = [None] * len(dumps)
    placed, left = _Placed(), sorted(range(len(dumps)), key=lambda node: _width(known[node]))
    while left:
        for node in left:
            clock = _clock(spans[node], dumps[node].at, known[node], placed)
            if clock:
                break
        else:
            break
        found[node] = clock
        placed.add(spans[node], dumps[node].at, clock)
        left.remove(node)
    return found


def _width(known: Reading | None) -> float:
    return known.bound if known else _INFINITY


def _clock(own: _Spans, at: float, known: Reading | None, placed: _Placed) -> Reading | None:
    """Return what is known of a node's clock together with what it tells beside the others; None if
    that is nothing. Where they tell something impossible, it is ignored.
    """
    loose = known or _widest(own, at, placed)
    wide = loose and _cut(loose, own, at, placed.sure, WANDER)
    if not (loose and wide):
        return known
    exact = _cut(loose, own, at, placed.spans, 0.0) or wide
    return exact._replace(bound=wide.bound + abs(exact.offset - wide.offset))


def _cut(loose: Reading, own: _Spans, at: float, others: _Spans, wander: float) -> Reading | None:
    """Return what remains of `loose` after these limits; None if nothing does."""
    region = Region(loose)
    for seconds, least, most in _limits(own, at, others):
        slack = wander * abs(seconds)
        if not region.cut(seconds, least - slack, most + slack):
            return None
    return region.reading


def _limits(own: _Spans, at: float, others: _Spans) -> Iterator[tuple[float, float, float]]:
    """Yield moments in seconds after `at`, with the least and greatest offset of a clock then."""
    for key, (entered, left) in own.items():
        there = others.get(key)
        if there is None:
            continue
        if math.isfinite(entered) and math.isfinite(there.left):
            yield entered, -_INFINITY, there.left - at - entered
        if math.isfinite(left) and math.isfinite(there.entered):
            yield left, there.entered - at - left, _INFINITY


def _widest(own: _Spans, at: float, placed: _Placed) -> Reading | None:
    """Return all that a clock may be of which only these spans are known; None if unbounded."""
    limits = [*_limits(own, at, placed.sure)]
    least = [low for _, low, _ in limits if math.isfinite(low)]
    most = [high for _, _, high in limits if math.isfinite(high)]
    if not (least and most):
        return None
    away = max(abs(seconds) for seconds, _, _ in limits)
    low, high = min(*least, *most), max(*least, *most)
    bound = (high - low) / 2 + (MOST_DRIFT + WANDER) * away
    return Reading((low + high) / 2, bound, 0.0, MOST_DRIFT)


# ---- what joins nodes


def _spans(dump: Dump) -> _Spans:
    """Return what a node tells of each operation, in seconds after the dump's moment."""
    found: _Spans = {}
    for rank, record in dump.records.items():
        for key, span in _of_rank(rank, record).items():
            found[key] = found.get(key, _Span()).joined(span)
    return found


def _of_rank(rank: int, record: Record) -> _Spans:
    """Return the spans of a rank by keys that are the same on all nodes. If a group was made again,
    as by a second init_process_group(), only what was told since then counts.
    """
    members = {group.number: group.members for group in record.groups}
    places = {group: of.index(rank) for group, of in members.items() if rank in of}
    found: _Spans = {}
    last: dict[_Key, int] = {}
    for each in record.operations:
        series, span = _told(each, places.get(each.group, -1 if each.group else rank))
        if not series:
            continue
        if each.operation not in MESSAGES and each.sequence <= last.get(series, -1):
            found = {key: held for key, held in found.items() if key[0] != each.group}
        last[series] = each.sequence
        found[*series, each.sequence] = span
    return found


def _told(each: Operation, place: int) -> tuple[_Key, _Span]:
    """Return the series that this operation is in, and what it tells of others' operations.

    `place` is the rank's in the group, -1 if it is unknown. The series is () if it tells nothing.
    """
    left = each.left if each.state == "done" and each.path not in _LEAVES_EARLY else None
    seen = each.came if each.came is not None else left
    seen = _INFINITY if seen is None else seen
    if each.operation in _WAITS_FOR_ALL and (each.elements or each.operation == "barrier"):
        return (each.group, each.operation), _Span(each.entered, seen)
    if each.operation in MESSAGES and each.sequence and min(place, each.root) >= 0:
        if each.operation == "send":
            return (each.group, "message", place, each.root), _Span(entered=each.entered)
        return (each.group, "message", each.root, place), _Span(left=seen)
    return (), _Span()
