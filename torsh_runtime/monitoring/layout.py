"""The recording of a worker's operations: its layout in memory, and how it is read.

The agent makes a file for each round, beside that of the status pages; without an agent a worker
keeps the recording in memory of its own. Words are native 64-bit integers, written by the compiled
library (csrc/common/recorder.hpp) with plain stores.

File: a header of HEADER_BYTES, then STRIDE bytes for each local rank, of which RECORDING_BYTES are
its recording. In words:

    header  0  MAGIC
            1  VERSION
            2  number of recordings
    recording
            0  how many operations were begun
            1  looks at both clocks, times 2; odd while the last one is written
            2  ticks of the processor's clock at the first look, 3 nanoseconds of CLOCK_MONOTONIC
            4  the same at the last look
            6  how many notes were begun (torsh_runtime/monitoring/notes.py)
            7  how many names are taken
            8  ENTRIES entries of ENTRY_WORDS words; the n-th operation is in entry n mod ENTRIES.
               Those that are still under way keep their entries: a later operation passes them
               over, and has a later number
               notes, names and groups, see notes.py
               TALLIES tallies, of a group each; the last one is that of all later groups
    entry   0  mark: 4 × (1 + the operation's number), + FAILED, WRITING, INSIDE or LEFT; 0: unused
            1  the call, as in the record of a status page (torsh_runtime/status.py), where root is
               the other rank of a message; operations are those of RECORDED
            2  number of elements, of a list in all; of a batch, of operations; of a wait 1 + the
               number of the operation that was waited for, 0 is unknown
            3  number of the group (32 bits), its size (24 bits), 1 + its place in PATHS (7 bits; 0
               is unknown), whether a thread of the group's own carried it out (1 bit)
            4  number of the operation in its group; of a message in its direction between the two
               ranks of the group, from 1 on; of a wait that of the operation which was waited for;
               0 is unknown, or the group's first meeting
            5  ticks when the rank entered it, 6 when it knew that all had, 7 when it left; 0 is
               unknown
    tally   for each operation, for each of SIZES: calls, bytes, ticks from entering to leaving,
            ticks of them until all had entered; then for each operation, for each of DURATIONS:
            calls. Of class k are those of 2^(k-1) to 2^k - 1 bytes, or ticks.

What a recording holds may be nonsense: nobody keeps a worker from writing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torsh_runtime.enumerations import (
    DTYPES,
    ITEM_BYTES,
    NOTED,
    OPERATIONS,
    PATHS,
    REDUCTIONS,
)

MAGIC = int.from_bytes(b"torshrec", "little")
VERSION = 2
HEADER_BYTES = 4096
RECORDED: tuple[str, ...] = (*OPERATIONS, *NOTED)
MESSAGES = ("send", "recv")
NO_OPERATIONS = NOTED
"""Recorded names that are no operations. What a batch or a wait consists of is recorded itself."""


class Head(NamedTuple):
    """The words that a recording begins with. The build compares these and the following layouts
    with csrc/common/recorder.hpp."""

    begun: int
    looks: int
    first_ticks: int
    first_time: int
    last_ticks: int
    last_time: int
    notes_begun: int
    names_taken: int


class Entry(NamedTuple):
    """The words of an entry."""

    mark: int
    call: int
    count_: int  # tuples have a method of the plain name
    group: int
    place: int
    entered: int
    came: int
    left: int


class Cell(NamedTuple):
    """The words of a tally that count the operations of one kind and size."""

    calls: int
    bytes: int
    ticks: int
    waited: int


ENTRIES, ENTRY_WORDS, FIRST_ENTRY = 1024, len(Entry._fields), len(Head._fields)
NOTES, NOTE_WORDS, FIRST_NOTE = 4096, 4, FIRST_ENTRY + ENTRIES * ENTRY_WORDS
NAMES, NAME_WORDS, FIRST_NAME = 128, 8, FIRST_NOTE + NOTES * NOTE_WORDS
GROUPS, GROUP_WORDS, FIRST_GROUP = 32, 32, FIRST_NAME + NAMES * NAME_WORDS
TALLIES, SIZES, DURATIONS, CELL_WORDS = 7, 32, 32, len(Cell._fields)
FAILED, WRITING, INSIDE, LEFT = range(4)
NOTES_BEGUN, NAMES_TAKEN = map(Head._fields.index, ("notes_begun", "names_taken"))
_CELLS = len(RECORDED) * SIZES
_TALLY_WORDS = _CELLS * CELL_WORDS + len(RECORDED) * DURATIONS
FIRST_TALLY = FIRST_GROUP + GROUPS * GROUP_WORDS
RECORDING_BYTES = 8 * (FIRST_TALLY + TALLIES * _TALLY_WORDS)
STRIDE = -(-RECORDING_BYTES // HEADER_BYTES) * HEADER_BYTES
_STATES = {FAILED: "failed", INSIDE: "running", LEFT: "done"}
_ITEM_BYTES = tuple(ITEM_BYTES.values())


def file_beside(status_file: str) -> str:
    """Return the file of a round's recordings, which is beside that of its status pages."""
    return f"{status_file}.operations"


class Operation(NamedTuple):
    """Describes an operation of a worker, as it was noted.

    Example:
        ```python
        last = tr.monitoring.recent_operations()[-1]
        print(last.operation, last.dtype, last.elements, last.state)
        ```
    """

    number: int
    """Number of the operation. It grows from one operation of the worker to the next, by 1 where
    nothing is skipped."""
    operation: str
    """Name of the operation, which is in RECORDED."""
    dtype: str
    """Name of the elements' dtype; it has no meaning for operations without elements."""
    reduction: str
    """Name of the reduction; it has no meaning for operations that do not reduce."""
    elements: int
    """Number of elements, for a list in all; for a batch, the operations that were launched
    together."""
    nbytes: int
    """Bytes of the elements; 0 for a wait and a batch."""
    root: int
    """Rank of the group that it starts from, or at the other end of a message; less than 0 is
    none."""
    arrays: int
    """Length of the list of arrays that it was given; 0 is a single array."""
    group: int
    """Number of the group, the same on all its ranks; 0 is the default group."""
    ranks: int
    """Size of the group."""
    sequence: int
    """Number of the operation in its group; 0 is the group's first meeting. Of a message its number
    in its direction between the two ranks, from 1 on; 0 for a receiver as long as nothing has come.
    Of a wait that of the operation that is waited for, 0 as long as that has not begun."""
    state: str
    """running, done or failed."""
    entered: float
    """Seconds of CLOCK_MONOTONIC, as the next two."""
    came: float | None
    """Time at which this rank knew that all had entered, for a receiver that its sender had. None
    if it was not informed."""
    left: float | None
    """None while it is running."""
    path: str = ""
    """The way its bytes took, which is in PATHS; "" is unknown."""
    in_background: bool = False
    """True if it continued after its call returned: its caller may wait in a `wait`."""
    awaited: int | None = None
    """For a wait the `number` of the operation that is waited for. None for others, or if
    unknown."""


class Tallied(NamedTuple):
    """Counts of the operations of one kind and size."""

    operation: str
    size_class: int
    """Class of the size; k contains 2^(k-1) to 2^k - 1 bytes."""
    calls: int
    nbytes: int
    seconds: float
    waited: float
    """Seconds of these until all ranks had entered, as far as that is known."""


class Clock(NamedTuple):
    """Converts a processor's ticks to seconds of CLOCK_MONOTONIC."""

    ticks: int
    seconds: float
    rate: float
    """Ticks a second."""

    def at(self, ticks: int) -> float:
        """Return the time of that many ticks."""
        return self.seconds + (ticks - self.ticks) / self.rate


def words_of(memory: bytes | memoryview) -> memoryview:
    """Return a recording's words, with zeros in place of what is missing."""
    content = bytes(memory[:RECORDING_BYTES]).ljust(RECORDING_BYTES, b"\0")
    return memoryview(content).cast("Q")


def clock_of(words: memoryview) -> Clock | None:
    """Return the recording's clock, or None if there is none yet or it is nonsense."""
    head = Head(*words[:FIRST_ENTRY])
    ticks, time = head.last_ticks - head.first_ticks, head.last_time - head.first_time
    if head.looks % 2 or ticks <= 0 or time <= 0:
        return None
    return Clock(head.last_ticks, head.last_time / 1e9, ticks / time * 1e9)


def operations_of(
    words: memoryview, later: memoryview, first: int = 0, most: int = ENTRIES
) -> list[Operation]:
    """Return the last `most` operations that are held, in the order in which they began, from
    number `first` on. `later` is the same recording, read again afterwards. An operation that was
    overwritten in between is left out."""
    clock = clock_of(later)
    if clock is None:
        return []
    begun = words[0]
    found = []
    recent = range(max(begun - ENTRIES, first), begun)
    for place in range(ENTRIES) if first == 0 else (number % ENTRIES for number in recent):
        start = FIRST_ENTRY + place * ENTRY_WORDS
        mark, again = words[start], later[start]
        number = (mark >> 2) - 1
        is_whole = mark >> 2 == again >> 2 and WRITING not in (mark & 3, again & 3)
        is_held = begun - min(most, ENTRIES) <= number or mark & 3 == INSIDE
        if is_whole and is_held and first <= number < begun and number % ENTRIES == place:
            entry = Entry(*words[start : start + ENTRY_WORDS])
            found.append(_operation(number, entry, clock))
    return sorted(found)  # by their numbers


def tallies_of(words: memoryview) -> Iterator[Tallied]:
    """Yield the counts of all groups together."""
    clock = clock_of(words)
    rate = clock.rate if clock is not None else float("inf")
    starts = range(FIRST_TALLY, FIRST_TALLY + TALLIES * _TALLY_WORDS, _TALLY_WORDS)
    cells = (words[start : start + _CELLS * CELL_WORDS].tolist() for start in starts)
    used = [each for each in cells if any(each)]
    for cell in range(_CELLS):
        words_of_all = (each[cell * CELL_WORDS : (cell + 1) * CELL_WORDS] for each in used)
        total = Cell(*map(sum, zip(*words_of_all, strict=True))) if used else None
        if total is not None and total.calls:
            kind, size = divmod(cell, SIZES)
            times = total.ticks / rate, total.waited / rate
            yield Tallied(RECORDED[kind], size, total.calls, total.bytes, *times)


def durations_of(words: memoryview) -> dict[str, list[tuple[float, int]]]:
    """Return, by operation, pairs of seconds and the number of calls that took less than these
    seconds and no less than half of them."""
    clock = clock_of(words)
    if clock is None:
        return {}
    found: dict[str, list[tuple[float, int]]] = {}
    for kind, operation in enumerate(RECORDED):
        first = FIRST_TALLY + _CELLS * CELL_WORDS + kind * DURATIONS
        for length in range(DURATIONS):
            calls = sum(words[first + tally * _TALLY_WORDS + length] for tally in range(TALLIES))
            if calls:
                found.setdefault(operation, []).append((2**length / clock.rate, calls))
    return found


def _operation(number: int, entry: Entry, clock: Clock) -> Operation:
    call, group, count = entry.call, entry.group, entry.count_
    kind, root, path = call >> 8 & 0xFF, call >> 32, group >> 56 & 0x7F
    operation = _name(RECORDED, call & 0xFF, "operation")
    awaited = count - 1 if operation == "wait" and count else None
    if operation == "wait":
        count = 0
    has_bytes = operation not in NO_OPERATIONS
    return Operation(
        number=number,
        operation=operation,
        dtype=_name(DTYPES, kind, "dtype"),
        reduction=_name(REDUCTIONS, call >> 16 & 0xFF, "reduction"),
        elements=count,
        nbytes=count * (_ITEM_BYTES[kind] if kind < len(_ITEM_BYTES) else 1) * has_bytes,
        root=root - (1 << 32) if root >> 31 else root,
        arrays=call >> 24 & 0xFF,
        group=group & 0xFFFFFFFF,
        ranks=group >> 32 & 0xFFFFFF,
        sequence=entry.place,
        state=_STATES.get(entry.mark & 3, "running"),
        entered=clock.at(entry.entered),
        came=clock.at(entry.came) if entry.came else None,
        left=clock.at(entry.left) if entry.left else None,
        path=PATHS[path - 1] if 0 < path <= len(PATHS) else "",
        in_background=bool(group >> 63),
        awaited=awaited,
    )


def _name(names: tuple[str, ...], number: int, kind: str) -> str:
    return names[number] if number < len(names) else f"{kind} {number}"
