"""The status page: how far a worker is, noted where its agent can read it.

The agent makes a file for each round and names it in TORSH_STATUS_FILE. Workers map it and write
words, native 64-bit integers, with plain stores; a note costs no system call.

File: a header of PAGE_BYTES, then a page of PAGE_BYTES for each local rank. In words:

    header  0  MAGIC
            1  VERSION
            2  number of pages
    page    0  pid of the worker that has taken the page; 0 is none
            1  1 once its first process group is there
            2  1 + its step; 0 is none yet
            3  where it stands in a mesh: 48 bytes of text, padded with zeros
            9  1 + the rank that it waits for outside of collectives; 0 is none
           10  what it does there, or waits for: 48 bytes of text
           16  RECORDS records of RECORD_WORDS words, each in two cache lines of its own
    record  0  turn: 4 × the operation's number in its group, + WRITING, INSIDE or LEFT
            1  the call: operation, dtype and reduction (8 bits each, numbered as in
               enumerations.py), length of a list of arrays (8 bits; 0 is none), root (32
               bits, signed; less than 0 is none)
            2  number of elements, of a list in all
            3  number of the group, the same on all its ranks (32 bits), its size (32 bits)
            4  rounds: how often the rank has met the others in this group
            5  a message that it has waited for for a while; 0 is none. Its operation (8 bits),
               whether words 6 and 7 hold anything (a bit each), 22 unused bits, the rank of the
               job at the other end (32 bits)
            6  the tag of that message
            7  the tag of another one that has come from that rank instead
            8  the axis of a mesh that the group is along: 48 bytes of text

A worker's k-th group writes to record k mod RECORDS, or to that of an earlier group of its number
(csrc/common/progress.hpp), from whichever thread runs the operation. A reader that finds the same
turn before and after it has read words 1 to 3, and not WRITING, has facts of one call. A record
may also hold nonsense: nobody keeps a worker from writing it.
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
    """What the compiled core writes of a record, word by word; the build compares it with
    csrc/common/progress.hpp."""

    turn: int
    call: int
    count_: int  # tuples have a method of the plain name
    group: int
    rounds: int
    message: int
    tag: int
    instead: int


AXIS = len(Record._fields)
_TURN, _GROUP = map(Record._fields.index, ("turn", "group"))


class Page:
    """A worker's own page."""

    def __init__(self, words: memoryview) -> None:
        """`words` are the page's; the memory must outlive this object."""
        self._words = words
        self._bytes = words.cast("B")
        self._groups = 0

    def note_initialised(self) -> None:
        """A process group is there."""
        self._words[INITIALISED] = 1

    def note_step(self, step: int) -> None:
        """The worker is at this step; less than 0 is none."""
        self._words[STEP] = max(int(step) + 1, 0) % (1 << 64)

    @property
    def step(self) -> int | None:
        """The step that was noted last; None is none."""
        return self._words[STEP] - 1 if self._words[STEP] else None

    def note_place(self, place: str) -> None:
        """Where the worker stands in a mesh, such as "pp 1, tp 0"."""
        self._note_text(PLACE, place)

    def note_doing(self, doing: str, awaited: int = -1) -> None:
        """What it does outside of collectives; `awaited`: the rank of the job that it waits for
        there, -1 is none."""
        self._words[AWAITED] = 0
        self._note_text(DOING, doing)
        self._words[AWAITED] = awaited + 1

    def note_axis(self, group: int, axis: str) -> None:
        """Which axis of a mesh the group of this number is along."""
        for index in range(RECORDS):
            if self._record(index)[_GROUP] % (1 << 32) == group:
                self._note_text(FIRST_RECORD + index * RECORD_WORDS + AXIS, axis)

    def _note_text(self, word: int, text: str) -> None:
        size = TEXT_WORDS * 8
        content = text.encode()[:size].ljust(size, b"\0")
        self._bytes[word * 8 : word * 8 + size] = content

    def next_record(self, number: int) -> memoryview:
        """The record for one more group of this process, of that number."""
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
    """That of the group of this name, the same on all its ranks."""
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
    """The page that the agent has given this worker; None without one."""
    try:
        env = WorkerEnv.from_environ(os.environ)
    except ConfigError:
        return None
    return take_page(env.status_file, env.local_rank) if env.status_file else None


# A forked child is no rank: what it noted would be taken for its parent's doing.
os.register_at_fork(after_in_child=own_page.cache_clear)


def take_page(path: str, local_rank: int) -> Page | None:
    """This process's page in the file. None if there is no such file, it is none of ours, or
    another living process has the page.
    """
    try:
        with open(path, "r+b", buffering=0) as file:  # noqa: PTH123  (pathlib costs more)
            words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    except (OSError, ValueError, TypeError):  # not there, empty, or no multiple of a word
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
    """Whether there is such a process; what can be no pid is none."""
    if not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
