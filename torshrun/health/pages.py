"""The agent's side of the status pages: makes the file, and reads what workers noted in it."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torsh_runtime import status
from torsh_runtime.enumerations import DTYPES, OPERATIONS, REDUCTIONS
from torshrun.text import printable

_TRIES = 8  # how often a record is read that its worker goes on changing
_MOST_RANKS = 1 << 24
_MOST_PAGES = 1 << 14
_MOST_TAGS = 1 << 32
_PAGE_WORDS = status.PAGE_BYTES // 8
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_TO_ROOT = ("reduce", "gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The last operation that a worker began in one of its groups."""

    group: int
    """Number of the group, the same on all its ranks; 0 is the default group."""
    ranks: int
    """Size of the group."""
    sequence: int
    """Number of the operation in its group; 0 is the group's first meeting."""
    active: bool
    """True if the worker is in it, and has not left it."""
    rounds: int
    """Meetings of the worker with the others in this group: grows while an operation advances."""
    operation: str
    """The operation's name; "operation 99" for an unknown one."""
    dtype: str
    """Name of the elements' type; "dtype 99" for an unknown one."""
    reduction: str
    """SUM and so on, where it reduces."""
    count: int
    root: int
    """Rank that it starts from; -1 is none."""
    whole: bool
    """False if the worker continued while it was read: it may then mix two operations."""
    axis: str = ""
    """The axis of a mesh that the group is along; "" is none that is known."""
    arrays: int = 0
    """Length of the list of arrays that it was given; 0 is an array that is no list's."""

    def __str__(self) -> str:
        if not self.sequence and self.operation == "barrier":
            return "init_process_group()"
        what = f"{self.operation}({self._arguments()})"
        if not self.group:
            return what
        axis = f"axis {self.axis}, " if self.axis else ""
        return f"{what} of {axis}group {self.group:x} ({self.ranks} ranks)"

    def _arguments(self) -> str:
        if self.operation == "barrier":
            return ""
        words = [f"{self.dtype}[{self.count}]"]
        if self.arrays:
            words = [f"{self.arrays} arrays of {self.count} {self.dtype} in all"]
        if self.operation in _REDUCING:
            words.append(self.reduction)
        if self.root >= 0:
            words.append(f"{'dst' if self.operation in _TO_ROOT else 'src'}={self.root}")
        return ", ".join(words)


class Awaited(NamedTuple):
    """Describes what a worker waits for outside of collectives."""

    rank: int
    """The rank that is to send it."""
    what: str
    """A description such as "waits for F5 of stage 0"."""
    call: str = ""
    """The message that it waits for: "recv(src=1, tag=7)"; "" is something else."""
    instead: int = -1
    """The tag of another message that has come from there instead; -1 is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """Holds what a worker has noted; all of it may be wrong, as anything that a worker says."""

    initialised: bool = False
    """True if it has got past init_process_group()."""
    step: int | None = None
    """The step it reported last; None is none yet."""
    collectives: tuple[Collective, ...] = ()
    """The last operation of each group, in the order of the groups' numbers."""
    place: str = ""
    """The worker's place in a mesh: "pp 1, tp 0"; "" if it is in none."""
    doing: str = ""
    """The work outside of collectives: "F5 of stage 1"; "" is nothing that it has noted."""
    awaited: Awaited | None = None
    """The thing that it waits for there; None is nothing."""

    @property
    def collective(self) -> Collective | None:
        """Return a collective that it is in, else the last of one of its groups; None if none."""
        active = [each for each in self.collectives if each.active]
        return (active or self.collectives or (None,))[-1]


class StatusPages:
    """The pages of one round's workers. Whoever makes them closes them."""

    def __init__(self, path: str, count: int) -> None:
        """Make the file for `count` local ranks, anew if it is there. OSError if it cannot be."""
        self.path = path
        self._count = count
        Path(path).unlink(missing_ok=True)  # stragglers of the round before may have it mapped
        # Read, not mapped: a worker that cuts the file short must not be this process's death.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Room now: without it a worker's store would be its death by SIGBUS.
            os.posix_fallocate(self._descriptor, 0, (count + 1) * status.PAGE_BYTES)
            os.pwrite(self._descriptor, struct.pack("=3Q", status.MAGIC, status.VERSION, count), 0)
        except OSError:
            self.close()
            Path(path).unlink()
            raise

    def read(self) -> tuple[WorkerStatus, ...]:
        """Return what the workers have noted, by local rank."""
        return _read(self._descriptor, self._count)

    def clear(self, local_rank: int) -> None:
        """Clear the page of a worker that is gone, for its replacement."""
        os.pwrite(self._descriptor, bytes(status.PAGE_BYTES), (local_rank + 1) * status.PAGE_BYTES)

    def close(self) -> None:
        """Close the file; it stays, and workers may continue to write to it."""
        os.close(self._descriptor)


def read_pages(path: str) -> tuple[WorkerStatus, ...]:
    """Return what the workers have noted, by local rank, in a file that somebody else has made; ()
    if there is no such file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ()
    try:
        header = os.pread(descriptor, 24, 0)
        magic, version, count = struct.unpack("=3Q", header.ljust(24, b"\0"))
        is_ours = (magic, version) == (status.MAGIC, status.VERSION) and count <= _MOST_PAGES
        return _read(descriptor, count) if is_ours else ()
    except OSError:
        return ()
    finally:
        os.close(descriptor)


def _read(descriptor: int, count: int) -> tuple[WorkerStatus, ...]:
    for _ in range(_TRIES):
        # A record is whole if its worker began no other one while it was read.
        words, later = _words(descriptor, count), _words(descriptor, count)
        found = tuple(_read_page(words, later, rank + 1) for rank in range(count))
        if all(each.whole for worker in found for each in worker.collectives):
            break
    return found


def _words(descriptor: int, count: int) -> memoryview:
    size = (count + 1) * status.PAGE_BYTES
    return memoryview(os.pread(descriptor, size, 0).ljust(size, b"\0")).cast("Q")


def _read_page(words: memoryview, later: memoryview, page: int) -> WorkerStatus:
    begin = page * _PAGE_WORDS
    step, awaited = words[begin + status.STEP], words[begin + status.AWAITED]
    doing = _text(later, begin + status.DOING)
    waits = Awaited(awaited - 1, doing) if 0 < awaited <= _MOST_RANKS else None
    first, size = begin + status.FIRST_RECORD, status.RECORD_WORDS
    records = [
        (status.Record(*words[start : start + status.AXIS]), start)
        for start in range(first, first + status.RECORDS * size, size)
        if words[start]
    ]
    found = (
        _collective(record, later[start], _text(later, start + status.AXIS))
        for record, start in records
    )
    messages = (_message(record) for record, _ in records)
    return WorkerStatus(
        initialised=words[begin + status.INITIALISED] != 0,
        step=step - 1 if step else None,
        collectives=tuple(sorted(found, key=lambda each: each.group)),
        place=_text(later, begin + status.PLACE),
        doing=doing,
        awaited=waits or next(filter(None, messages), None),
    )


def _text(words: memoryview, word: int) -> str:
    found = words[word : word + status.TEXT_WORDS].tobytes().partition(b"\0")[0]
    return printable(found.decode(errors="replace"))


def _collective(record: status.Record, turn_later: int, axis: str) -> Collective:
    turn, call = record.turn, record.call
    root = call >> 32
    return Collective(
        group=record.group & 0xFFFFFFFF,
        ranks=record.group >> 32,
        sequence=turn >> 2,
        active=turn % 4 == status.INSIDE,
        rounds=record.rounds,
        operation=_name(OPERATIONS, call & 0xFF, "operation"),
        dtype=_name(DTYPES, call >> 8 & 0xFF, "dtype"),
        reduction=_name(REDUCTIONS, call >> 16 & 0xFF, "reduction"),
        count=record.count_,
        root=root - (1 << 32) if root >> 31 else root,
        whole=turn == turn_later and turn % 4 != status.WRITING,
        axis=axis,
        arrays=call >> 24 & 0xFF,
    )


def _message(record: status.Record) -> Awaited | None:
    """Return a message that the worker waits for; None if there is none."""
    message, tag, instead = record.message, record.tag, record.instead
    rank, operation = message >> 32, _name(OPERATIONS, message & 0xFF, "operation")
    if operation not in ("send", "recv") or rank >= _MOST_RANKS:
        return None
    tagged = f", tag={tag}" if message & status.HAS_TAG else ", tag=any"
    call = f"{operation}({'dst' if operation == 'send' else 'src'}={rank}{tagged})"
    other = instead if message & status.HAS_INSTEAD and instead < _MOST_TAGS else -1
    return Awaited(rank, f"waits in {call}", call, other)


def _name(names: tuple[str, ...], number: int, kind: str) -> str:
    return names[number] if number < len(names) else f"{kind} {number}"
