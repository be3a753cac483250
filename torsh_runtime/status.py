"""The status page, in which a worker notes its progress for its agent to read.

The agent creates a file for each round and names it in TORSH_STATUS_FILE. Workers map it and write
words, native 64-bit integers, with plain stores; a note needs no system call.

File: a header of PAGE_BYTES, then a page of PAGE_BYTES for each local rank. In words:

    header  0  MAGIC
            1  VERSION
            2  number of pages
    page    0  pid of the worker that has taken the page; 0 is none
            1  1 once its first process group exists
            2  1 + its step; 0 is none yet
            3  its place in a mesh: 48 bytes of text, padded with zeros
            9  1 + the rank that it waits for outside of collectives; 0 is none
           10  its activity there, or what it waits for: 48 bytes of text
           16  RECORDS records of RECORD_WORDS words, each in two cache lines of its own
    record  0  turn: 4 × the operation's number in its group, + WRITING, INSIDE or LEFT
            1  the call: operation, dtype and reduction (8 bits each, numbered as in
               enumerations.py), length of a list of arrays (8 bits; 0 is none), root (32
               bits, signed; less than 0 is none)
            2  number of elements, of a list in all
            3  number of the group, equal on all its ranks (32 bits), its size (32 bits)
            4  rounds: how often the rank has synchronized with the others in this group
            5  a message that it has been waiting for; 0 is none. Its operation (8 bits),
               whether words 6 and 7 hold anything (a bit each), 22 unused bits, the rank of the
               job at the other end (32 bits)
            6  the tag of that message
            7  the tag of a different message that has come from that rank instead
            8  the axis of a mesh that the group is along: 48 bytes of text

A worker's k-th group writes to record k mod RECORDS, or to that of an earlier group of its number
(csrc/common/progress.hpp), from whichever thread runs the operation. If a reader finds the same
turn before and after it reads words 1 to 3, and not WRITING, these words describe a single call. A
record may also hold nonsense, since nothing prevents a worker from writing it.
"""

from __future__ import annotations

import mmap
import os
import zlib
from functools import cache
from typing import NamedTuple

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError

MAGIC = int.from_bytes(b"torshpgs", "little")
VERSION = 1
PAGE_BYTES = 1024
RECORDS = 7
RECORD_WORDS = 16
FIRST_RECORD = 16
WRITING, INSIDE, LEFT = 1, 2, 3

PID, INITIALISED, STEP, PLACE = range(4)
AWAITED, DOING = 9, 10
TEXT_WORDS = 6
HAS_TAG, HAS_INSTEAD = 1 << 8, 1 << 9
_PAGE_WORDS = PAGE_BYTES // 8


class Record(NamedTuple):
    """Lists the words of a record that the compiled core writes, in their order.

    The build compares them with csrc/common/progress.hpp."""

    turn: int
    call: int
    count_: int  # tuples have a method count()
    group: int
    rounds: int
    message: int
    tag: int
    instead: int


AXIS = len(Record._fields)
_TURN, _GROUP = map(Record._fields.index, ("turn", "group"))


class Page:
    """Represents the page of this worker."""

    def __init__(self, words: memoryview) -> None:
        """Write to `words`, the words of the page, whose memory must outlive this object."""
        self._words = words
        self._bytes = words.cast("B")
        self._groups = 0

    def note_initialised(self) -> None:
        """Note that a process group exists."""
        self._words[INITIALISED] = 1

    def note_step(self, step: int) -> None:
        """Note the worker's step, which counts from 0; less than 0 is none."""
        self._words[STEP] = max(int(step) + 1, 0) % (1 << 64)

    @property
    def step(self) -> int | None:
        """Return the step that was noted last; None if there is none."""
        return self._words[STEP] - 1 if self._words[STEP] else None

    def note_place(self, place: str) -> None:
        """Note the worker's place in a mesh, such as "pp 1, tp 0"."""
        self._note_text(PLACE, place)

    def note_doing(self, doing: str, awaited: int = -1) -> None:
        """Note the worker's activity outside of collectives.

        `awaited` is the rank of the job that it waits for there; -1 is none."""
        self._words[AWAITED] = 0
        self._note_text(DOING, doing)
        self._words[AWAITED] = awaited + 1

    def note_axis(self, group: int, axis: str) -> None:
        """Note the axis of a mesh for the group of this number, if that has a record."""
        for index in range(RECORDS):
            if self._record(index)[_GROUP] % (1 << 32) == group:
                self._note_text(FIRST_RECORD + index * RECORD_WORDS + AXIS, axis)

    def _note_text(self, word: int, text: str) -> None:
        size = TEXT_WORDS * 8
        content = text.encode()[:size].ljust(size, b"\0")
        self._bytes[word * 8 : word * 8 + size] = content

    def next_record(self, number: int) -> memoryview:
        """Clear and return the record for a new group of this process, which has that number."""
        records = [self._record(index) for index in range(RECORDS)]
        same = (each for each in records if each[_TURN] and each[_GROUP] % (1 << 32) == number)
        record = next(same, records[self._groups % RECORDS])
        self._groups += 1
        record[:] = memoryview(bytes(len(record) * 8)).cast("Q")
        return record

    def _record(self, index: int) -> memoryview:
        begin = FIRST_RECORD + index * RECORD_WORDS
        return self._words[begin : begin + RECORD_WORDS]


def number_of(group: str) -> int:
    """Return the number of the group of this name, which is equal on all its ranks."""
    return zlib.crc32(group.encode()) & 0x7FFFFFFF


def report_step(step: int) -> None:
    """Report the training step of this worker to torshrun, for its report if the job hangs.

    It works with and without a process group; without torshrun it does nothing.

    Args:
        step: The number of the step, from 0.

    Example:
        ```python
        for step, batch in enumerate(batches):
            tr.report_step(step)
            train(batch)
        ```
    """
    page = own_page()
    if page is not None:
        page.note_step(step)


@cache
def own_page() -> Page | None:
    """Return the page that the agent has given this worker; None if there is none."""
    try:
        env = WorkerEnv.from_environ(os.environ)
    except ConfigError:
        return None
    return take_page(env.status_file, env.local_rank) if env.status_file else None


# A forked child is no rank: its notes would be attributed to its parent.
os.register_at_fork(after_in_child=own_page.cache_clear)


def take_page(path: str, local_rank: int) -> Page | None:
    """Take this process's page in the file at `path` and return it.

    Returns None if there is no such file, it has a different format, or another living process has
    the page.
    """
    try:
        with open(path, "r+b", buffering=0) as file:  # noqa: PTH123  (pathlib costs more)
            words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    except (OSError, ValueError, TypeError):  # missing, empty, or no multiple of a word
        return None
    if not _has_page(words, local_rank):
        return None
    begin = (local_rank + 1) * _PAGE_WORDS
    page = words[begin : begin + _PAGE_WORDS]
    if page[PID] != os.getpid() and _is_alive(page[PID]):
        return None
    page.cast("B")[:] = bytes(PAGE_BYTES)  # another program of the same worker may have had it
    page[PID] = os.getpid()
    return Page(page)


def _has_page(words: memoryview, local_rank: int) -> bool:
    if len(words) < _PAGE_WORDS or (words[0], words[1]) != (MAGIC, VERSION):
        return False
    return 0 <= local_rank < words[2] and len(words) >= (words[2] + 1) * _PAGE_WORDS


def _is_alive(pid: int) -> bool:
    """Return whether the process exists; numbers that cannot be pids never do."""
    if not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True
