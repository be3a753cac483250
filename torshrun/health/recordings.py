"""The agent's side of the recordings: makes their file, and reads what workers noted in it."""

from __future__ import annotations

import json
import logging
import math
import os
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.notes import Group, Note, groups_of, names_of, notes_of, whereabouts
from torshrun.health.accounts import write_kept
from torshrun.safe_files import Folder
from torshrun.text import printable

if TYPE_CHECKING:  # at an agent's start it would take time
    from torshrun.failure.trails import Trails
    from torshrun.health.clocks import CommonClock, Reading

_log = logging.getLogger("torshrun")
_TOLD_AT = 64
"""The offset at which a kept file describes, in JSON, whose it is."""
_LOOKED_AT = 128
"""The number of a rank's last operations that are examined for what other nodes receive."""
_MOST_BYTES = 1 << 28
"""The largest file that is read: one with the recordings of 800 ranks."""


class Recordings:
    """Holds the recordings of one round's workers. Whoever creates them closes them."""

    def __init__(self, descriptor: int | None, count: int) -> None:
        """Read from `descriptor`; None if there is no file, and nothing is read."""
        self._descriptor = descriptor
        self._count = count
        self._taken = [0] * count

    @classmethod
    def make(cls, status_file: str, count: int) -> Recordings:
        """Make the file beside that of the status pages, anew if it exists.

        Where there is no room for it, the workers keep their recordings to themselves, and a
        warning says so.
        """
        path = layout.file_beside(status_file)
        try:
            return cls(_made(path, count), count)
        except OSError as error:
            Path(path).unlink(missing_ok=True)
            _log.warning(
                "workers' operations are not recorded in %s: %s", path, error.strerror or error
            )
            return cls(None, count)

    @property
    def descriptor(self) -> int | None:
        """Return the descriptor of the file, to read it; None if there is none."""
        return self._descriptor

    def new_names(self) -> list[str]:
        """Return all names that the workers have taken, if there are others since the previous
        call; else []. It takes a system call for each worker.
        """
        parts = range(self._count if self._descriptor is not None else 0)
        taken = [self._words(place, layout.NAMES_TAKEN, 1)[0] for place in parts]
        if taken == self._taken:
            return []
        self._taken = taken
        words = [self._words(place, 0, layout.FIRST_GROUP) for place in parts]
        return [name for each in words for name in names_of(each)]

    def _words(self, place: int, first: int, count: int) -> memoryview:
        """Return `count` words of a recording; zeros for what cannot be read."""
        begin = layout.HEADER_BYTES + place * layout.STRIDE + 8 * first
        try:
            content = os.pread(self._descriptor or 0, 8 * count, begin)
        except OSError:
            content = b""
        return memoryview(content.ljust(8 * count, b"\0")).cast("Q")

    def copy(self) -> bytes:
        """Return all that the workers have noted; b"" if that is nothing, or cannot be read."""
        if self._descriptor is None:
            return b""
        # Read, not mapped: a worker that cuts the file short must not be this process's death.
        size = layout.HEADER_BYTES + self._count * layout.STRIDE
        try:
            copied = os.pread(self._descriptor, size, 0).ljust(size, b"\0")
        except OSError:
            return b""
        parts = (_part(copied, place) for place in range(self._count))
        return copied if any(map(_has_any, parts)) else b""

    def close(self) -> None:
        """Close the file; it stays, and workers may continue to write to it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def without_changed(first: bytes, second: bytes) -> bytes:
    """Return the first of two copies, without operations and notes that differ in the second."""
    copied, words, later = bytearray(first), memoryview(first).cast("Q"), memoryview(second)
    marks = [range(layout.FIRST_ENTRY, layout.FIRST_NOTE, layout.ENTRY_WORDS)]
    marks += [range(layout.FIRST_NOTE, layout.FIRST_NAME, layout.NOTE_WORDS)]
    again = later.cast("Q")
    for begin in range(layout.HEADER_BYTES, len(first), layout.STRIDE):
        if words[begin // 8] == again[begin // 8] == 0:
            continue
        clock = begin + 8, begin + 8 * layout.NOTES_BEGUN
        copied[slice(*clock)] = later[slice(*clock)]
        for place in (begin // 8 + mark for part in marks for mark in part):
            if words[place] != again[place]:
                copied[8 * place : 8 * place + 8] = bytes(8)
    return bytes(copied)


def save(
    copied: bytes,
    folder: Folder,
    run_id: str,
    number: int,
    node: int,
    first_rank: int,
    at: float,
    clock: CommonClock | None = None,
) -> None:
    """Save what framed() makes of the copy. Raises OSError."""
    content = framed(copied, run_id, number, node, first_rank, at, clock)
    write_kept(folder, number, f"operations_{node}.bin", content)


def framed(
    copied: bytes,
    run_id: str,
    number: int,
    node: int,
    first_rank: int,
    at: float,
    clock: CommonClock | None = None,
) -> bytes:
    """Return what copy() gave of round `number`, with whose it is; read_dump() reads it.

    `at` is the moment of the copy, in seconds of CLOCK_MONOTONIC. `clock` is as it is known for
    that moment.
    """
    told = {
        "run_id": run_id[:256],
        "round": number,
        "node": node,
        "host": os.uname().nodename,
        "first_rank": first_rank,
        "at": at,
        "clock": [clock.leader, *clock.reading] if clock else None,
        "wall": time.time() - time.monotonic(),
    }
    header = copied[:24].ljust(_TOLD_AT, b"\0") + json.dumps(told).encode()
    return header.ljust(layout.HEADER_BYTES, b"\0") + copied[layout.HEADER_BYTES :]


class Record(NamedTuple):
    """Holds what a worker's recording held at one moment."""

    operations: Sequence[layout.Operation] = ()
    """The operations in the order in which they began."""
    notes: Sequence[Note] = ()
    """The notes in the order in which they were written."""
    groups: Sequence[Group] = ()
    tallies: Sequence[layout.Tallied] = ()


class Dump(NamedTuple):
    """The recordings of one node's workers, of this moment or of one that was kept."""

    run_id: str
    round: int
    node: int
    """Rank of the node."""
    host: str
    at: float
    """The moment of these recordings, in seconds of CLOCK_MONOTONIC of the node."""
    records: Mapping[int, Record]
    """The records by rank of the job. Times are in seconds before that moment: less than 0."""
    offset: float | None = None
    """Seconds to be added to `at` for the leader's CLOCK_MONOTONIC; None is unknown."""
    bound: float = 0.0
    """The most by which `offset` may be wrong, in seconds."""
    drift: float = 0.0
    """The seconds by which the offset grows in a second."""
    drift_bound: float = 0.0
    leader: str = ""
    """The leader's node id."""
    wall: float | None = None
    """Seconds to be added to `at` for the node's wall clock; None is unknown."""

    @property
    def operations(self) -> Mapping[int, Sequence[layout.Operation]]:
        """Return the operations of each rank."""
        return {rank: record.operations for rank, record in self.records.items()}

    def with_clock(self, leader: str, reading: Reading) -> Dump:
        """Return the dump with this reading of the leader's clock."""
        offset, bound, drift, drift_bound = reading
        return self._replace(
            leader=leader, offset=offset, bound=bound, drift=drift, drift_bound=drift_bound
        )

    @property
    def reading(self) -> Reading | None:
        """Return what is known of the leader's clock at that moment; None if nothing."""
        from torshrun.health.clocks import Reading

        if self.offset is None:
            return None
        return Reading(self.offset, self.bound, self.drift, self.drift_bound)


def trails_of(dump: Dump) -> Trails:
    """Return the trails that the dump condenses to, for other nodes."""
    from torshrun.failure.trails import Trails

    return Trails(
        dump.operations,
        {rank: whereabouts(record.notes) for rank, record in dump.records.items()},
        {each.number: each for record in dump.records.values() for each in record.groups},
    )


def read_trails(copied: bytes, first_rank: int, at: float) -> Trails:
    """Return the trails of what copy() gave at that moment, without reading what is left out."""
    from torshrun.failure.trails import Trails

    operations, stands, groups = {}, {}, dict[int, Group]()
    for place in range(_count_of(copied)):
        words, rank = layout.words_of(_part(copied, place)), first_rank + place
        operations[rank] = before(layout.operations_of(words, words, most=_LOOKED_AT), at)
        notes = [note._replace(time=note.time - at) for note in notes_of(words, words)]
        stands[rank] = whereabouts(notes)
        groups |= {each.number: each for each in groups_of(words)}
    return Trails(operations, stands, groups)


def load(path: str) -> Dump | None:
    """Return the dump in a file that save() wrote; None if it is none, or cannot be read."""
    (content,) = _contents(path, times=1)
    return read_dump(content)


def read_dump(content: bytes) -> Dump | None:
    """Return the dump that framed() gave; None if it is no such thing."""
    count = _count_of(content)
    if not count:
        return None
    try:
        told = json.loads(content[_TOLD_AT : layout.HEADER_BYTES].rstrip(b"\0"))
        run_id, number, node = str(told["run_id"]), int(told["round"]), int(told["node"])
        host, first, at = str(told["host"]), int(told["first_rank"]), float(told["at"])
        wall = float(told["wall"]) if "wall" in told else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not all(map(math.isfinite, (at, wall or 0.0))):
        return None
    records = dict(enumerate(_records(content, content, at), first))
    dump = Dump(printable(run_id), number, node, printable(host), at, records, wall=wall)
    clock = common_clock_of(told.get("clock"))
    return dump.with_clock(*clock) if clock else dump


def common_clock_of(told: object) -> CommonClock | None:
    """Return what was kept of the common clock; None if that is nothing, or nonsense."""
    from torshrun.health.clocks import CommonClock, Reading

    if not isinstance(told, list) or len(told) != 1 + len(Reading._fields):
        return None
    leader, *numbers = told
    try:
        reading = Reading(*map(float, numbers))
    except (ValueError, TypeError, OverflowError):
        return None
    is_sound = all(map(math.isfinite, reading)) and min(reading.bound, reading.drift_bound) >= 0
    return CommonClock(printable(str(leader)), reading) if is_sound else None


def read_recordings(status_file: str) -> tuple[float, list[Record]]:
    """Return what each local rank has noted, from a file that somebody else has made.

    The first part is now, in seconds of CLOCK_MONOTONIC; times are in seconds before that. The list
    is empty if there is no such file.
    """
    content, later = _contents(layout.file_beside(status_file), times=2)
    now = time.monotonic()
    return now, _records(content, later, now)


def _records(content: bytes, later: bytes, at: float) -> list[Record]:
    """Return the records in a file that was read twice."""
    pairs = (
        (layout.words_of(_part(content, place)), layout.words_of(_part(later, place)))
        for place in range(_count_of(content))
    )
    return [
        Record(
            before(layout.operations_of(words, again), at),
            [note._replace(time=note.time - at) for note in notes_of(words, again)],
            groups_of(words),
            list(layout.tallies_of(words)),
        )
        for words, again in pairs
    ]


def read_words(status_file: str) -> list[memoryview]:
    """Return each local rank's recording as it is; [] if there is no such file."""
    (content,) = _contents(layout.file_beside(status_file), times=1)
    return [layout.words_of(_part(content, place)) for place in range(_count_of(content))]


def read_notes(descriptor: int, place: int, first: int) -> tuple[int, list[Note]]:
    """Return how many notes local rank `place` has begun, and those from number `first` on that are
    held. `descriptor` is of the recordings' file. Raises OSError.
    """
    begin = layout.HEADER_BYTES + place * layout.STRIDE
    size = 8 * layout.FIRST_GROUP  # all that notes need
    copies = (os.pread(descriptor, size, begin).ljust(size, b"\0") for _ in range(2))
    words, later = (memoryview(copy).cast("Q") for copy in copies)
    return words[layout.NOTES_BEGUN], notes_of(words, later, first)


def _contents(path: str, times: int) -> list[bytes]:
    """Return the file's content, read `times` times; b"" if there is none. It never blocks, as it
    would at a pipe.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return [b""] * times
    try:
        size = _size_of(os.pread(descriptor, 24, 0))
        if size > min(os.fstat(descriptor).st_size, _MOST_BYTES):
            size = 0
        return [os.pread(descriptor, size, 0) for _ in range(times)]
    except OSError:
        return [b""] * times
    finally:
        os.close(descriptor)


def before(operations: Sequence[layout.Operation], at: float) -> list[layout.Operation]:
    """Return the operations with times in seconds relative to `at`."""
    return [
        each._replace(
            entered=each.entered - at,
            came=None if each.came is None else each.came - at,
            left=None if each.left is None else each.left - at,
        )
        for each in operations
    ]


def _has_any(part: bytes) -> bool:
    """Return whether the worker has begun an operation, or a note."""
    words = layout.words_of(part[: 8 * layout.FIRST_ENTRY])
    return bool(words[0] or words[layout.NOTES_BEGUN])


def _part(content: bytes, place: int) -> bytes:
    begin = layout.HEADER_BYTES + place * layout.STRIDE
    return content[begin : begin + layout.RECORDING_BYTES]


def _count_of(content: bytes) -> int:
    """Return how many recordings the file has; 0 if it is none."""
    size = _size_of(content)
    return (size - layout.HEADER_BYTES) // layout.STRIDE if 0 < size <= len(content) else 0


def _size_of(header: bytes) -> int:
    """Return how many bytes a file has that begins like this; 0 if it has no recordings."""
    magic, version, count = struct.unpack("=3Q", header[:24].ljust(24, b"\0"))
    is_one = (magic, version) == (layout.MAGIC, layout.VERSION)
    return layout.HEADER_BYTES + count * layout.STRIDE if is_one else 0


def _made(path: str, count: int) -> int:
    Path(path).unlink(missing_ok=True)  # stragglers of the round before may have it mapped
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Room now: without it a worker's store would be its death by SIGBUS.
        os.posix_fallocate(descriptor, 0, layout.HEADER_BYTES + count * layout.STRIDE)
        os.pwrite(descriptor, struct.pack("=3Q", layout.MAGIC, layout.VERSION, count), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
