"""Parts of recordings as few bytes: what a trace of a running job is kept in, and sent as.

    trace   MAGIC, length of the facts (32 bits), facts in JSON, pieces
    piece   place of the worker (32 bits), length (32 bits), what zlib made of its content
    content the first 8 words of the recording; number of the first entry and how many; of the first
            note and how many; of the first name and how many; how many groups have been written;
            1 if it is late, else 0; then columns of the entries and of the notes, names, groups

Numbers are little-endian. Of an entry's columns mark, sequence and the time of entering hold by how
much they are more than in the entry before, the other two times by how much they are more than the
time before them, plus 1, where 0 is unknown; of a note's columns mark and time do so. Of each
column first all numbers' first bytes are stored, then all second ones, and so on, which zlib likes.
A piece is read by making a recording of it (torsh_runtime/monitoring/layout.py), so what holds for
these holds here: nonsense is survived.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.layout import ENTRIES, ENTRY_WORDS, NOTE_WORDS, NOTES

MAGIC = b"torshtrc"
_LENGTH, _PIECE, _COUNTS = struct.Struct("<I"), struct.Struct("<II"), struct.Struct("<16Q")
_MASK = (1 << 64) - 1
_LEVEL = 6
_MOST_CONTENT = 2 * layout.RECORDING_BYTES
_ENTERED, _CAME, _LEFT = 5, 6, 7
_NAME_BYTES, _GROUP_BYTES = layout.NAME_WORDS * 8, layout.GROUP_WORDS * 8


class Piece(NamedTuple):
    """Holds what a worker has noted since the previous piece."""

    header: bytes
    """The first 8 words of its recording."""
    first: int
    """Number of the first entry."""
    entries: bytes
    """At most ENTRIES, one after the other."""
    first_note: int
    notes: bytes
    """At most NOTES."""
    first_name: int
    names: bytes
    groups: bytes
    """The groups that exist; b"" if they are as before."""
    is_late: bool = False
    """True if its entry has been in an earlier piece, but had not ended then."""


def pack(piece: Piece) -> bytes:
    """Return the piece in few bytes, without its place."""
    counts = [
        *(piece.first, len(piece.entries) // (8 * ENTRY_WORDS)),
        *(piece.first_note, len(piece.notes) // (8 * NOTE_WORDS)),
        *(piece.first_name, len(piece.names) // _NAME_BYTES, len(piece.groups) // _GROUP_BYTES),
        int(piece.is_late),
    ]
    head = _COUNTS.pack(*_words(piece.header), *counts)
    columns = [*_entry_columns(_words(piece.entries)), *_note_columns(_words(piece.notes))]
    content = b"".join([head, *map(_planes, columns), piece.names, piece.groups])
    return zlib.compress(content, _LEVEL)


def unpack(packed: bytes) -> Piece | None:
    """Return the piece in these bytes; None for nonsense."""
    try:
        content = zlib.decompressobj().decompress(packed, _MOST_CONTENT)
        head = _COUNTS.unpack_from(content)
    except (zlib.error, struct.error):
        return None
    first, entries, first_note, notes, first_name, names, groups, late = head[8:]
    limits = (ENTRIES, NOTES, layout.NAMES, layout.GROUPS)
    counts = (entries, notes, names, groups)
    sizes = (8 * ENTRY_WORDS, 8 * NOTE_WORDS, _NAME_BYTES, _GROUP_BYTES)
    if any(count > limit for count, limit in zip(counts, limits, strict=True)):
        return None
    ends = list(
        accumulate((c * s for c, s in zip(counts, sizes, strict=True)), initial=_COUNTS.size)
    )
    if ends[-1] != len(content) or first_name + names > layout.NAMES:
        return None
    parts = [content[begin:end] for begin, end in pairwise(ends)]
    header = array("Q", head[:8]).tobytes()
    read_entries = _entries(_columns(parts[0], ENTRY_WORDS, entries))
    read_notes = _notes(_columns(parts[1], NOTE_WORDS, notes))
    rows = first, read_entries, first_note, read_notes
    return Piece(header, *rows, first_name, parts[2], parts[3], late == 1)


def join(about: Mapping[str, object], pieces: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a whole trace of pieces that pack() made, each with the place of its worker."""
    facts = json.dumps(about).encode()
    parts = [MAGIC, _LENGTH.pack(len(facts)), facts]
    for place, packed in pieces:
        parts += [_PIECE.pack(place, len(packed)), packed]
    return b"".join(parts)


def split(trace: bytes) -> tuple[Mapping[str, object], list[tuple[int, bytes]]] | None:
    """Return what join() got, without what is cut off at the end. None if it is no trace."""
    begin = len(MAGIC) + _LENGTH.size
    if trace[: len(MAGIC)] != MAGIC or len(trace) < begin:
        return None
    (length,) = _LENGTH.unpack_from(trace, len(MAGIC))
    try:
        about = json.loads(trace[begin : begin + length])
    except (ValueError, RecursionError):
        return None
    if not isinstance(about, dict):
        return None
    return about, list(_split(trace, begin + length))


def _split(trace: bytes, begin: int) -> Iterator[tuple[int, bytes]]:
    while begin + _PIECE.size <= len(trace):
        place, length = _PIECE.unpack_from(trace, begin)
        begin += _PIECE.size
        if begin + length > len(trace):
            return
        yield place, trace[begin : begin + length]
        begin += length


# ---- columns


def _entry_columns(words: array[int]) -> list[array[int]]:
    mark, call, count, group, place, entered, came, left = _by_column(words, ENTRY_WORDS)
    return [
        *(_more(mark), call, count, group, _more(place), _more(entered)),
        array("Q", [c and (c - e + 1) & _MASK for c, e in zip(came, entered, strict=True)]),
        array(
            "Q",
            [
                l and (l - (c or e) + 1) & _MASK
                for l, c, e in zip(left, came, entered, strict=True)  # noqa: E741
            ],
        ),
    ]


def _entries(columns: Sequence[array[int]]) -> bytes:
    mark, call, count, group, place, entered, came, left = columns
    entered = _sums(entered)
    came = array("Q", [c and (c + e - 1) & _MASK for c, e in zip(came, entered, strict=True)])
    times = zip(left, came, entered, strict=True)
    left = array("Q", [l and (l + (c or e) - 1) & _MASK for l, c, e in times])  # noqa: E741
    return _by_row([_sums(mark), call, count, group, _sums(place), entered, came, left])


def _note_columns(words: array[int]) -> list[array[int]]:
    mark, what, time, value = _by_column(words, NOTE_WORDS)
    return [_more(mark), what, _more(time), value]


def _notes(columns: Sequence[array[int]]) -> bytes:
    mark, what, time, value = columns
    return _by_row([_sums(mark), what, _sums(time), value])


def _more(numbers: array[int]) -> array[int]:
    """Return by how much each number is more than the previous one."""
    if not numbers:
        return numbers
    return array("Q", [numbers[0], *((b - a) & _MASK for a, b in pairwise(numbers))])


def _sums(numbers: array[int]) -> array[int]:
    return array("Q", accumulate(numbers, lambda a, b: (a + b) & _MASK))


def _by_column(words: array[int], count: int) -> list[array[int]]:
    return [words[column::count] for column in range(count)]


def _by_row(columns: Sequence[array[int]]) -> bytes:
    words = array("Q", bytes(8 * len(columns) * len(columns[0])))
    for place, column in enumerate(columns):
        words[place :: len(columns)] = column
    return words.tobytes()


def _planes(numbers: array[int]) -> bytes:
    content = _little(numbers).tobytes()
    return b"".join([content[byte::8] for byte in range(8)])


def _columns(content: bytes, words: int, count: int) -> list[array[int]]:
    found = []
    for begin in range(0, 8 * words * count, 8 * count or 1):
        rows = bytearray(8 * count)
        for byte in range(8):
            rows[byte::8] = content[begin + byte * count : begin + (byte + 1) * count]
        found.append(_little(array("Q", rows)))
    return found or [array("Q") for _ in range(words)]


def _words(content: bytes) -> array[int]:
    return array("Q", content)


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers


# ---- as recordings


class Unpacked:
    """Makes recordings of one worker's pieces, in their order, to be read as such."""

    def __init__(self) -> None:
        self._names = bytearray(layout.NAMES * _NAME_BYTES)
        self._names_taken = 0
        self._groups = b""

    def recording(self, piece: Piece) -> memoryview:
        """Return the words of a recording with the piece's rows, and all names and groups."""
        begin = piece.first_name * _NAME_BYTES
        self._names[begin : begin + len(piece.names)] = piece.names
        known = piece.first_name + len(piece.names) // _NAME_BYTES
        self._names_taken = max(self._names_taken, known)
        self._groups = piece.groups or self._groups
        words = array("Q", bytes(layout.RECORDING_BYTES))
        words[0:8] = _words(piece.header)
        words[0] = _put(words, layout.FIRST_ENTRY, ENTRY_WORDS, ENTRIES, piece.first, piece.entries)
        notes = _put(words, layout.FIRST_NOTE, NOTE_WORDS, NOTES, piece.first_note, piece.notes)
        words[layout.NOTES_BEGUN], words[layout.NAMES_TAKEN] = notes, self._names_taken
        memory = memoryview(words).cast("B")
        memory[8 * layout.FIRST_NAME :][: len(self._names)] = self._names
        memory[8 * layout.FIRST_GROUP :][: len(self._groups)] = self._groups
        return memory.cast("Q")


def _put(words: array[int], begin: int, size: int, count: int, first: int, content: bytes) -> int:
    """Put rows where the ring has them, and return the number after the last."""
    rows = _words(content)
    number = len(rows) // size
    place = first % count
    until_end = min(number, count - place)
    words[begin + place * size : begin + (place + until_end) * size] = rows[: until_end * size]
    words[begin : begin + (number - until_end) * size] = rows[until_end * size :]
    return (first + number) & _MASK
