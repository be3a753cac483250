"""Follows the recordings of a running round, to know more than what they hold at one moment.

Workers do not notice: what they have newly noted is copied out of their memory now and then, before
they write over it. Where they are too fast for that, what is missing is seen by its numbers.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.layout import (
    ENTRIES,
    ENTRY_WORDS,
    FAILED,
    FIRST_ENTRY,
    FIRST_GROUP,
    FIRST_NAME,
    FIRST_NOTE,
    INSIDE,
    LEFT,
    NAME_WORDS,
    NAMES,
    NOTE_WORDS,
    NOTES,
    NOTES_BEGUN,
)
from torsh_runtime.monitoring.notes import KINDS
from torshrun.health.packed import Piece, join, pack
from torshrun.health.ring import Ring

MOST_BYTES = 64 << 20
"""The most bytes that a collector keeps of a trace."""
_LOOK = struct.Struct(f"={FIRST_ENTRY}Q")
_VALUE = struct.Struct("=d")
_ENTRY, _NOTE = 8 * ENTRY_WORDS, 8 * NOTE_WORDS
_SOME = 256
"""New entries of a worker that are worth copying."""
_OLD = ENTRIES // 2
"""Entries for whose end is waited, before later ones are taken."""
_MOST_LATE = 64
_LONGEST, _SHORTEST = 0.05, 0.0005
_REST = 9.0
"""A collector rests at least this many times as long as it works."""
_NICE = 10
_STEP = KINDS.index("step")


class Collector:
    """Collects the recordings in one file. Whoever creates it closes it."""

    def __init__(self, path: str, *, most_bytes: int = MOST_BYTES) -> None:
        """Open the recordings at `path`, which layout.file_beside() gives.

        Raises OSError if it is no such file.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags)
        header = os.pread(self._descriptor, 24, 0).ljust(24, b"\0")
        magic, version, count = struct.unpack("=3Q", header)
        size = os.fstat(self._descriptor).st_size
        needed = layout.HEADER_BYTES + count * layout.STRIDE
        if (magic, version) != (layout.MAGIC, layout.VERSION) or needed > size:
            self.close()
            raise OSError(0, "it holds no recordings", path)
        self._followed = [_Followed(self._descriptor, place) for place in range(count)]
        self._pieces: list[tuple[int, bytes]] = []
        self._left = most_bytes
        self.full_at: float | None = None
        """When there was no more room for what came, in seconds of CLOCK_MONOTONIC."""
        self.began = time.monotonic()
        self._looked = self.began
        self._is_watching = False

    @property
    def steps(self) -> Sequence[float | None]:
        """Return the last step of each worker that was seen."""
        return [each.step for each in self._followed]

    @property
    def is_replaced(self) -> bool:
        """Return whether the file has been removed, as before another round, or in the end."""
        return os.fstat(self._descriptor).st_nlink == 0

    def watch(self) -> float:
        """Look which `steps` the workers are at, and keep nothing. Returns the seconds after which
        to call this again, as collect() does. What is held then is collected by the first call of
        that.
        """
        begin, self._is_watching = time.monotonic(), True
        most = max((each.watch() for each in self._followed), default=0)
        return self._pause(most, begin)

    def collect(self) -> float:
        """Copy what is new, if it is much. Returns the seconds after which to call this again.

        Call it until full_at is set, after which nothing more is collected.
        """
        begin = time.monotonic()
        for each in self._followed if self._is_watching else ():
            each.begin_again()
        self._is_watching = False
        most = max((each.look() for each in self._followed), default=0)
        if self.full_at is None:
            for each in self._followed:
                each.copy()
                self._keep(each, each.take())
        return self._pause(most, begin)

    def _pause(self, most: int, begin: float) -> float:
        now = time.monotonic()
        rate = most / max(begin - self._looked, 1e-6)
        self._looked = begin
        pause = min(_SOME / rate, _LONGEST) if rate else _LONGEST
        return max(pause, _SHORTEST, _REST * (now - begin))

    def finish(self, about: Mapping[str, object]) -> bytes:
        """Return all of it as a trace, with what is still under way; read_trace() reads it."""
        if self.full_at is None:
            for each in self._followed:
                each.look()
                each.copy(is_last=True)
                self._keep(each, each.take(is_last=True))
        now = time.monotonic()
        facts = {
            "version": layout.VERSION,
            "at": now,
            "began": self.began,
            "wall": time.time() - now,
            "full_at": self.full_at,
            "count": len(self._followed),
            **about,
        }
        return join(facts, self._pieces)

    def close(self) -> None:
        os.close(self._descriptor)

    def _keep(self, of: _Followed, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            packed = pack(piece)
            if len(packed) > self._left:
                self.full_at = self.full_at or time.monotonic()
                return
            self._left -= len(packed)
            self._pieces.append((of.place, packed))


class Steps(NamedTuple):
    """Holds the steps to be collected."""

    first: int
    last: int


def collect_for(
    path: str,
    seconds: float,
    about: Mapping[str, object],
    is_wanted: Callable[[], bool],
    steps: Steps | None = None,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """Collect for `seconds`, or until the trace is not wanted any more, and return the trace.

    Whether it is wanted is checked 20 times a second. With `steps`, only these are collected, and
    `seconds` includes the time to wait for them. It sleeps most of the time, so it needs a thread
    of its own, which yields to workers.

    Raises:
        OSError: `path` holds no recordings.
        LookupError: The steps have passed or do not come; the error says why.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    collector, wait = Collector(path, most_bytes=most_bytes), StepWait(steps)
    try:
        until = collector.began + seconds
        while is_wanted() and collector.full_at is None and not wait.is_over:
            pause = collector.collect() if wait.has_begun else collector.watch()
            wait.look(collector.steps)
            left = until - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(pause, left))
        if why := wait.why_none(seconds):
            raise LookupError(why)
        return collector.finish(about)
    finally:
        collector.close()


class StepWait:
    """Tells whether the steps that are wanted pass just now."""

    def __init__(self, steps: Steps | None) -> None:
        """Wait for these steps; None means that everything is wanted."""
        self._steps = steps
        self._at: list[float] = []
        self.has_begun = steps is None
        """True if they are about to begin, or have begun."""
        self.is_over = False
        """True if all ranks are beyond them."""

    def look(self, told: Iterable[float | None]) -> None:
        """Note the last step of each worker; None for those that have reported none."""
        self._at = [step for step in told if step is not None]
        if self._steps is None or not self._at:
            return
        self.is_over = min(self._at) > self._steps.last
        self.has_begun |= not self.is_over and max(self._at) >= self._steps.first - 1

    def why_none(self, seconds: float) -> str:
        """Return why there is nothing of them after `seconds`; "" if there is."""
        if self._steps is None:
            return ""
        if not self._at:
            return (
                f"no rank has told its steps within {seconds:g} s: call tr.monitoring.step(n) in "
                f"the script, or trace it for a while with --seconds"
            )
        if self.is_over and not self.has_begun:
            return f"step {self._steps.last} has gone by: the ranks are at step {min(self._at):g}"
        if max(self._at) < self._steps.first:
            at = f"the ranks are at step {max(self._at):g}"
            return f"step {self._steps.first} has not come within {seconds:g} s: {at}"
        return ""


class _Followed:
    """Follows what one worker has noted, from the oldest that is held."""

    def __init__(self, descriptor: int, place: int) -> None:
        self.place = place
        self.step: float | None = None
        self._descriptor = descriptor
        self._base = layout.HEADER_BYTES + place * layout.STRIDE
        self._header = bytes(_LOOK.size)
        self._before: list[Piece] = []
        self.begin_again()

    def begin_again(self) -> None:
        """Forget what was copied: all that is held is new."""
        self._entries = self._ring(0, FIRST_ENTRY, ENTRY_WORDS, ENTRIES)
        self._notes = self._ring(NOTES_BEGUN, FIRST_NOTE, NOTE_WORDS, NOTES)
        self._late: set[int] = set()
        self._ended_late: list[tuple[int, bytes]] = []
        self._before_all: list[tuple[int, bytes]] = []
        self._names, self._names_told, self._names_known = b"", 0, 0
        self._groups = b""

    def _ring(self, begun: int, first: int, words: int, count: int) -> Ring:
        at, rows = (self._base + 8 * word for word in (begun, first))
        return Ring(self._descriptor, at, rows, words, count)

    def look(self) -> int:
        """Look how many operations and notes there are; return how many more than before."""
        header = os.pread(self._descriptor, _LOOK.size, self._base).ljust(_LOOK.size, b"\0")
        head = layout.Head(*_LOOK.unpack(header))
        begun, notes_begun, names = head.begun, head.notes_begun, head.names_taken
        entries, notes = self._entries, self._notes
        if begun < entries.begun or notes_begun < notes.begun - NOTES // 2:
            self._before = self.take(is_last=True)
            self.begin_again()  # another program of the same worker has it now
            entries, notes = self._entries, self._notes
        more = max(begun - entries.begun, notes_begun - notes.begun)
        entries.begun, notes.begun = begun, max(notes_begun, notes.begun)
        if self._names_known < names <= NAMES:
            first, count = FIRST_NAME + self._names_known * NAME_WORDS, names - self._names_known
            self._names += self._read_words(first, count * NAME_WORDS)
            self._names_known = names
        if not head.looks % 2:
            self._header = header
        return min(more, ENTRIES)

    def watch(self) -> int:
        """Follow steps only, and return what look() does."""
        more = self.look()
        self._copy_notes()
        self._notes.drop()
        return more

    def copy(self, *, is_last: bool = False) -> None:
        """Copy new entries and notes, unless they are few."""
        if is_last or self._entries.begun - self._entries.next >= _SOME:
            self._copy_entries(is_last=is_last)
        self._copy_late(is_last=is_last)
        if self._notes.begun > self._notes.next:
            self._copy_notes()

    def take(self, *, is_last: bool = False) -> list[Piece]:
        """Return what was copied, once it is much."""
        late, self._ended_late = self._ended_late, []
        entries = self._entries.take(is_last=is_last)
        notes = self._notes.take(is_last=is_last)
        found, self._before = self._before, []
        found += [self._piece(entry, None) for entry in self._before_all]
        self._before_all.clear()
        found += [self._piece(entry, None)._replace(is_late=True) for entry in late]
        found += [self._piece(*both) for both in zip_longest(entries, notes)]
        return found or ([self._piece(None, None)] if is_last else [])

    def _piece(self, entries: tuple[int, bytes] | None, notes: tuple[int, bytes] | None) -> Piece:
        told, self._names_told = self._names_told, self._names_known
        names, self._names = self._names, b""
        groups = self._read_words(FIRST_GROUP, layout.GROUPS * layout.GROUP_WORDS)
        is_new, self._groups = groups != self._groups, groups
        rows = *(entries or (0, b"")), *(notes or (0, b""))
        return Piece(self._header, *rows, told, names, groups if is_new else b"")

    def _read_words(self, first: int, count: int) -> bytes:
        size = 8 * count
        return os.pread(self._descriptor, size, self._base + 8 * first).ljust(size, b"\0")

    def _copy_entries(self, *, is_last: bool) -> None:
        ring = self._entries
        is_first = not ring.next
        first, content, again = ring.rows(max(ring.next, ring.begun - ENTRIES), ring.begun)
        rows = self._taken(first, content, again, is_last=is_last, is_first=is_first)
        ring.add(first, rows)

    def _taken(
        self, first: int, content: bytes, again: bytes, *, is_last: bool, is_first: bool
    ) -> bytes:
        """Return the entries in front that are to be taken now.

        These are the ones that will not change any more, and those that take very long, which are
        taken once more when they have ended. Numbers without an operation have zeros.
        """
        marks = array("Q", content)[::ENTRY_WORDS]
        usual = range((first + 1) << 2 | LEFT, (first + 1 + len(marks)) << 2 | LEFT, 4)
        is_number = usual.stop < 1 << 64
        if content == again and is_number and marks == array("Q", usual):
            return content
        rows = bytearray(content)
        for place, mark in enumerate(marks):
            number, row = first + place, slice(place * _ENTRY, (place + 1) * _ENTRY)
            is_whole = content[row] == again[row]
            if is_whole and _is_final(number, mark):
                continue
            is_other, is_inside = mark >> 2 != number + 1, mark & 3 == INSIDE
            if is_other and is_inside and is_whole:  # one that takes long keeps its entry
                if is_first and mark >> 2 <= number:
                    self._before_all.append(((mark >> 2) - 1, content[row]))
                    self._late.add((mark >> 2) - 1)
                rows[row] = bytes(_ENTRY)
            elif not is_last and number > self._entries.begun - _OLD:
                return bytes(rows[: row.start])
            elif is_other:
                rows[row] = bytes(_ENTRY)
            elif len(self._late) < _MOST_LATE:
                self._late.add(number)
        return bytes(rows)

    def _copy_late(self, *, is_last: bool) -> None:
        for number in sorted(self._late):
            content, again = (self._entries.row(number) for _ in range(2))
            mark = array("Q", content)[0]
            if mark >> 2 != number + 1:
                self._late.discard(number)  # its end was written over
            elif content == again and (is_last or _is_final(number, mark)):
                self._late.discard(number)
                if not self._entries.replace(number, content):
                    self._ended_late.append((number, content))

    def _copy_notes(self) -> None:
        ring = self._notes
        first, content, again = ring.rows(max(ring.next, ring.begun - NOTES), ring.begun)
        words, count = array("Q", content), 0
        for place in range(len(content) // _NOTE):
            row = slice(place * _NOTE, (place + 1) * _NOTE)
            is_whole = words[place * NOTE_WORDS] == (first + place + 1) << 2 | LEFT
            if not is_whole or content[row] != again[row]:
                break  # another thread is writing it
            if words[place * NOTE_WORDS + 1] & 0xFF == _STEP:
                (self.step,) = _VALUE.unpack_from(content, place * _NOTE + 24)
            count += 1
        if not count and first < ring.begun - NOTES // 2:
            count = 1  # nonsense: who reads it passes it over
        ring.add(first, content[: count * _NOTE])


def _is_final(number: int, mark: int) -> bool:
    return mark in ((number + 1) << 2 | LEFT, (number + 1) << 2 | FAILED)
