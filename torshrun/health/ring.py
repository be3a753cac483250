"""A ring of a recording, of which rows are copied before they are written over."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator


class Ring:
    """Represents a ring of a recording, entries or notes, of which some have been copied."""

    def __init__(self, descriptor: int, begun: int, first: int, words: int, count: int) -> None:
        """Read the ring from the file `descriptor`.

        Args:
            descriptor: An open file.
            begun: The offset in the file of the number of rows that were begun.
            first: The offset of the first row.
            words: The words of a row.
            count: The number of rows.
        """
        self._descriptor, self._at, self._first, self.count = descriptor, begun, first, count
        self.size = 8 * words
        self.begun = self.next = 0
        self._copied: list[tuple[int, bytearray]] = []
        """Rows that follow each other, with the number of the first."""

    def rows(self, first: int, last: int) -> tuple[int, bytes, bytes]:
        """Return the rows from `first` to before `last` that have not been overwritten yet: the
        number of the first, and the rows as they are read twice.
        """
        content, again = self._read(first, last), self._read(first, last)
        begun = os.pread(self._descriptor, 8, self._at).ljust(8, b"\0")
        gone = min(max(int.from_bytes(begun, sys.byteorder) - self.count - first, 0), last - first)
        return first + gone, content[gone * self.size :], again[gone * self.size :]

    def row(self, number: int) -> bytes:
        """Return the row in the place of this number."""
        return self._read_at(number % self.count, 1)

    def _read(self, first: int, last: int) -> bytes:
        place, number = first % self.count, last - first
        until_end = min(number, self.count - place)
        found = self._read_at(place, until_end)
        return found + self._read_at(0, number - until_end) if number > until_end else found

    def _read_at(self, place: int, number: int) -> bytes:
        size = number * self.size
        return os.pread(self._descriptor, size, self._first + place * self.size).ljust(size, b"\0")

    def add(self, first: int, content: bytes) -> None:
        """Keep rows, the next ones in their order."""
        if content:
            last, kept = self._copied[-1] if self._copied else (0, bytearray())
            if not kept or last + len(kept) // self.size != first:
                self._copied.append((first, bytearray(content)))
            else:
                kept += content
        self.next = first + len(content) // self.size

    def replace(self, number: int, row: bytes) -> bool:
        """Replace what was copied before by this row; return False if that was taken."""
        for first, kept in self._copied:
            place = (number - first) * self.size
            if 0 <= place < len(kept):
                kept[place : place + self.size] = row
                return True
        return False

    def drop(self) -> None:
        """Keep nothing of what was copied."""
        self._copied.clear()

    def take(self, *, is_last: bool) -> Iterator[tuple[int, bytes]]:
        """Yield what was kept, in parts that fit a ring; a part that is not full if `is_last`."""
        whole = self.count * self.size
        while self._copied:
            first, kept = self._copied[0]
            if len(kept) < whole and len(self._copied) == 1 and not is_last:
                return
            yield first, bytes(kept[:whole])
            del kept[:whole]
            if kept:
                self._copied[0] = (first + self.count, kept)
            else:
                self._copied.pop(0)
