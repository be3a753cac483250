"""Recordings as workers write them, written by a test."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.notes import Notebook
from torshrun.health.recordings import Recordings


class WrittenWorker:
    """One worker's recording in a file: a tick of its clock is a nanosecond."""

    def __init__(self, file: memoryview, place: int) -> None:
        begin = layout.HEADER_BYTES + place * layout.STRIDE
        self.memory = file[begin : begin + layout.RECORDING_BYTES]
        self.words = self.memory.cast("Q")
        self.passes = False
        """Whether those that are under way keep their entries."""
        self.clear()

    def clear(self) -> None:
        """As another program of the same worker does."""
        self.memory[:] = bytes(len(self.memory))
        self.notebook = Notebook(self.memory)
        self.words[2:6] = memoryview(struct.pack("=4Q", 0, 0, 10**12, 10**12)).cast("B").cast("Q")

    @property
    def begun(self) -> int:
        return self.words[0]

    def begin(self, operation: str = "all_reduce", sequence: int | None = None) -> int:
        """Enter one; its number. The n-th is entered at second 1 + n."""
        number = self.words[0]
        while self.passes and self.words[self._row(number)] & 3 == layout.INSIDE:
            number += 1
        self.words[0] = number + 1
        entered = (1 + number) * 10**9
        place = number if sequence is None else sequence
        call = layout.RECORDED.index(operation) | 11 << 8 | 0xFFFFFFFF << 32
        mark = (number + 1) << 2 | layout.INSIDE
        self._write(number, mark, call, 10, 2 << 32, place, entered, 0, 0)
        return number

    def end(self, number: int, *, mark: int = layout.LEFT) -> None:
        """Leave it, after half a second."""
        row = self._row(number)
        if self.words[row] >> 2 == number + 1:
            self.words[row + 6] = self.words[row + 5] + 250_000_000
            self.words[row + 7] = self.words[row + 5] + 500_000_000
            self.words[row] = (number + 1) << 2 | mark

    def do(self, count: int) -> None:
        """So many operations, one after the other."""
        for _ in range(count):
            self.end(self.begin())

    def _row(self, number: int) -> int:
        return layout.FIRST_ENTRY + number % layout.ENTRIES * layout.ENTRY_WORDS

    def _write(self, number: int, *words: int) -> None:
        row = self._row(number)
        for place, word in enumerate(words):
            self.words[row + place] = word


def written_file(path: Path, count: int) -> list[WrittenWorker]:
    """The recordings of so many workers, in layout.file_beside() of the path."""
    made = Recordings.make(str(path), count)
    made.close()
    with Path(layout.file_beside(str(path))).open("r+b") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0))
    return [WrittenWorker(memory, place) for place in range(count)]
