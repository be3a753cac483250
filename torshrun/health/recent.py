"""Reads what a worker has noted recently, without what was read before."""

from __future__ import annotations

import os
from collections.abc import Iterator

from torsh_runtime.monitoring import layout, notes
from torsh_runtime.monitoring.joining import Held

_WORD = 8
_HEAD = 0, layout.FIRST_ENTRY
_NAMES = layout.FIRST_NAME, layout.FIRST_GROUP


class Recent:
    """Reads one worker's operations and notes from given numbers on."""

    def __init__(self, descriptor: int, place: int) -> None:
        """Read the recordings' file `descriptor`, at the worker's local rank `place`."""
        self._descriptor = descriptor
        self._begin = layout.HEADER_BYTES + place * layout.STRIDE
        self._memories = [bytearray(layout.FIRST_TALLY * _WORD) for _ in range(2)]

    def read(self, first_operation: int, first_note: int) -> Held:
        """Return those from these numbers on that are still held.

        Raises OSError if the file cannot be read.
        """
        words, later = (
            self._copy(memory, first_operation, first_note) for memory in self._memories
        )
        return Held(
            layout.operations_of(words, later, first_operation),
            notes.notes_of(words, later, first_note),
        )

    def _copy(self, memory: bytearray, first_operation: int, first_note: int) -> memoryview:
        words = self._read(*_HEAD, memory)
        entries = layout.FIRST_ENTRY, layout.ENTRIES, layout.ENTRY_WORDS
        held = layout.FIRST_NOTE, layout.NOTES, layout.NOTE_WORDS
        begun, noted = words[0], words[layout.NOTES_BEGUN]
        for begin, end in (
            *_parts(*entries, first_operation, begun),
            *_parts(*held, first_note, noted),
            *([_NAMES] if noted > first_note else []),
        ):
            self._read(begin, end, memory)
        return words

    def _read(self, begin: int, end: int, memory: bytearray) -> memoryview:
        """Read these words of the recording into their places in memory; return all its words."""
        into = memoryview(memory)[begin * _WORD : end * _WORD]
        os.preadv(self._descriptor, [into], self._begin + begin * _WORD)
        return memoryview(memory).cast("Q")


def _parts(start: int, places: int, size: int, first: int, begun: int) -> Iterator[tuple[int, int]]:
    """Yield where in the ring that begins at `start` the rows from number `first` on are, as the
    first word and the one after the last.
    """
    count = min(begun - first, places)
    if count <= 0:
        return
    place = (begun - count) % places
    yield start + place * size, start + min(place + count, places) * size
    if place + count > places:
        yield start, start + (place + count - places) * size
