"""Notes of a worker about itself, in its recording: steps, sections, numbers, names of its groups.

A note is four words of the recording (torsh_runtime/monitoring/layout.py). In words:

    note    0  mark: 4 × (1 + the note's number), + WRITING or LEFT; 0: unused
            1  its kind in KINDS (8 bits), index of its name (16 bits), of its thread (16 bits; 0 is
               the main one)
            2  nanoseconds of CLOCK_MONOTONIC
            3  its value, a float64
    name    64 bytes of UTF-8, padded with zeros
    group   0  1 + its number; 0: unused
            1  its size
            2  its name, or the axis that it is along: 48 bytes of text
            8  its members as ranks of the job, in order of their ranks in the group, such as
               "0-3,8": 192 bytes of text; "" is unknown

The n-th note is in place n mod NOTES; a name stays where it is once it is taken. What a recording
holds may be nonsense: nobody keeps a worker from writing it.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torsh_runtime.monitoring.layout import (
    FIRST_GROUP,
    FIRST_NAME,
    FIRST_NOTE,
    GROUP_WORDS,
    GROUPS,
    LEFT,
    NAME_WORDS,
    NAMES,
    NAMES_TAKEN,
    NOTE_WORDS,
    NOTES,
    NOTES_BEGUN,
    WRITING,
)

KINDS = ("step", "begin", "end", "scalar")
"""A step begins, of the number `value`; a section begins, or ends; something has a value."""
_PLACE_OF = {kind: place for place, kind in enumerate(KINDS)}
_ident, _nanoseconds = threading.get_ident, time.monotonic_ns
_VALUE, _BITS = struct.Struct("=d"), struct.Struct("=Q")
_RANGES = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_ALL_RANGES = re.compile(rf"{_RANGES.pattern}(?:,{_RANGES.pattern})*")
_MOST_MEMBERS = 1 << 20
DEFAULT = "default"
"""The name of a default group. Default groups of torch.distributed have numbers as others have."""
OTHER = "other"
"""The name of all notes for whose own name there is no room."""


class Note(NamedTuple):
    """A note of a worker."""

    number: int
    """Number of notes that the worker had begun before."""
    kind: str
    """Kind of the note, which is in KINDS."""
    name: str
    time: float
    """Seconds of CLOCK_MONOTONIC."""
    value: float
    thread: int
    """0 is the main one."""


class Group(NamedTuple):
    """A group of a worker."""

    number: int
    size: int
    name: str
    """Name of the group, or of the axis of a mesh that it is along; "" is none."""
    ranks: str
    """Members as ranks of the job, in order of their ranks in the group, such as "0-3,8"; "" is
    unknown."""

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members as numbers, or () if they are unknown, or nonsense."""
        found: list[int] = []
        if self.size > _MOST_MEMBERS:
            return ()
        for each in _RANGES.findall(self.ranks) if _ALL_RANGES.fullmatch(self.ranks) else ():
            first, last = int(each[0]), int(each[1] or each[0])
            if last - first >= self.size - len(found):
                return ()
            found += range(first, last + 1)
        return tuple(found) if len(found) == self.size else ()


def ranges(ranks: Sequence[int]) -> str:
    """Return ranks as text such as "0-3,8", or "" if one of them is less than 0, which is of
    another job."""
    if any(rank < 0 for rank in ranks):
        return ""
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and runs[-1][1] + 1 == rank:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in runs)


class Notebook:
    """Writes a worker's own notes. Any thread may use it; a note takes about a microsecond."""

    def __init__(self, memory: memoryview) -> None:
        """Write to `memory`, a recording of RECORDING_BYTES, which must outlive this object."""
        self._words = memory.cast("B").cast("Q")
        self._bytes = memory.cast("B")
        self._values = self._bytes.cast("d")
        self._numbers = itertools.count()
        self._names: dict[str, int] = {}
        self._threads = {threading.main_thread().ident or 0: 0}
        self._lock = threading.Lock()
        self._groups: dict[int, Group] = {}
        self._put: Callable[[int, float], None] | None = None

    def write(
        self, kind: str, name: str = "", value: float = 0.0, thread: int | None = None
    ) -> None:
        """Write a note with the present time. A name is cut to 64 bytes; the 128th and all later
        ones become OTHER.

        thread: the thread that the note belongs to, by threading.get_ident(); None is the calling
        one.
        """
        index = self._names.get(name)
        if index is None:
            index = self._take(name)
        ident = _ident() if thread is None else thread
        place = self._threads.get(ident)
        if place is None:
            place = self._number(ident)
        put = self._put or self._put_here
        put(_PLACE_OF[kind] | index << 8 | place << 24, value)

    def write_by(self, put: Callable[[int, float], None]) -> None:
        """Have `put` write notes from now on. The compiled library's is faster."""
        self._put = put

    def _put_here(self, what: int, value: float) -> None:
        number = next(self._numbers)
        start = FIRST_NOTE + number % NOTES * NOTE_WORDS
        words, mark = self._words, (number + 1) << 2
        words[start] = mark | WRITING
        words[start + 1] = what
        words[start + 2] = _nanoseconds()
        self._values[start + 3] = value
        words[start] = mark | LEFT
        words[NOTES_BEGUN] = number + 1

    def take_name(self, name: str) -> None:
        """Keep a name that no note needs: processes that read the recording find it at any time."""
        if name not in self._names:
            self._take(name)

    def name_group(self, group: Group) -> None:
        """Record the group of this number; the groups after the first GROUPS are left out."""
        with self._lock:
            self._groups[group.number] = group
            for place in range(GROUPS):
                start = FIRST_GROUP + place * GROUP_WORDS
                if self._words[start] in (0, group.number + 1):
                    self._words[start + 1] = group.size
                    self._write_text(start + 2, 48, group.name)
                    fits = len(group.ranks) <= 192
                    self._write_text(start + 8, 192, group.ranks if fits else "")
                    self._words[start] = group.number + 1
                    return

    def title_group(self, number: int, name: str) -> None:
        """Record the name of the group of this number, if name_group() has recorded the group."""
        known = self._groups.get(number)
        if known is not None:
            self.name_group(known._replace(name=name))

    def _take(self, name: str) -> int:
        with self._lock:
            taken = len(self._names)
            if name in self._names:
                return self._names[name]
            if taken == NAMES - 1 and name != OTHER:
                return self._names.setdefault(OTHER, self._name(taken, OTHER))
            if taken >= NAMES:
                return self._names[OTHER]
            return self._names.setdefault(name, self._name(taken, name))

    def _name(self, place: int, name: str) -> int:
        self._write_text(FIRST_NAME + place * NAME_WORDS, NAME_WORDS * 8, name)
        self._words[NAMES_TAKEN] = place + 1
        return place

    def _number(self, ident: int) -> int:
        with self._lock:
            return self._threads.setdefault(ident, min(len(self._threads), 0xFFFF))

    def _write_text(self, word: int, size: int, text: str) -> None:
        content = text.encode("utf-8", "replace")[:size]
        self._bytes[word * 8 : word * 8 + size] = content.ljust(size, b"\0")


def names_of(words: memoryview) -> list[str]:
    """Return all names that the worker has taken, in the order in which it did."""
    return [
        _text(words, FIRST_NAME + place * NAME_WORDS, NAME_WORDS)
        for place in range(min(words[NAMES_TAKEN], NAMES))
    ]


def notes_of(words: memoryview, later: memoryview, first: int = 0) -> list[Note]:
    """Return the notes that are held, from number `first` on, in the order in which they were
    begun. `later` is the same recording, read again afterwards. A note that was overwritten in
    between is left out."""
    names = names_of(words)
    begun = words[NOTES_BEGUN]
    found = []
    for number in range(max(begun - NOTES, first), begun):
        start = FIRST_NOTE + number % NOTES * NOTE_WORDS
        mark, what, nanoseconds, value = words[start : start + NOTE_WORDS]
        if not mark == later[start] == (number + 1) << 2 | LEFT:
            continue
        kind, name = what & 0xFF, what >> 8 & 0xFFFF
        if kind < len(KINDS) and name < len(names):
            (amount,) = _VALUE.unpack(_BITS.pack(value))
            note = Note(number, KINDS[kind], names[name], nanoseconds / 1e9, amount, what >> 24)
            found.append(note)
    return found


def groups_of(words: memoryview) -> list[Group]:
    """Return the groups that the worker has recorded."""
    found = []
    for place in range(GROUPS):
        start = FIRST_GROUP + place * GROUP_WORDS
        if words[start]:
            name, ranks = _text(words, start + 2, 6), _text(words, start + 8, GROUP_WORDS - 8)
            found.append(Group(words[start] - 1, words[start + 1], name, ranks))
    return found


class Whereabouts(NamedTuple):
    """The position of a worker according to its notes; times are as those of the notes."""

    step: int | None = None
    """The last step that it began."""
    stepped: float = 0.0
    """Time at which that began."""
    section: str = ""
    """The innermost one of the main thread that has not ended; "" is none."""
    since: float = 0.0
    """Time at which that began."""


def whereabouts(notes: Sequence[Note]) -> Whereabouts:
    """Return the position of a worker from its notes, in the order in which they began."""
    found = Whereabouts()
    sections: list[Note] = []
    for note in notes:
        if note.kind == "step" and math.isfinite(note.value):
            found = found._replace(step=int(note.value), stepped=note.time)
        elif note.kind == "begin" and not note.thread:
            sections.append(note)
        elif note.kind == "end" and not note.thread:
            names = [each.name for each in sections]
            if note.name in names:
                del sections[len(names) - 1 - names[::-1].index(note.name) :]
    if sections:
        found = found._replace(section=sections[-1].name, since=sections[-1].time)
    return found


def _text(words: memoryview, start: int, count: int) -> str:
    content = words[start : start + count].tobytes()
    return content.partition(b"\0")[0].decode(errors="replace")
