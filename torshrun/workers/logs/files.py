"""Files that keep output: appended to, never truncated, renamed when they are large."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from torshrun.safe_files import Folder
from torshrun.workers.logs.lines import LineHolder, LineStamper

GENERATIONS = 5
"""Renamed files that are kept, <name>.1 (the latest) to <name>.5."""


@dataclass(eq=False)
class LogFile:
    """A file below `folder` that is renamed to <path>.1 at the first line end from `limit` bytes
    on, and at twice as many bytes at the latest; 0 is never.

    What cannot be written is told to `complain` once, and the file given up, not the worker. One
    that is shared by many streams is open only while it is written to, and for any thread.
    """

    folder: Folder
    path: str
    limit: int
    complain: Callable[[str], None]
    shared: bool = False

    def __post_init__(self) -> None:
        """Open the file. Raise OSError if that fails."""
        self._lock = threading.Lock()
        self._stamper = LineStamper()
        self._dead = False
        self._fd = -1
        self._size = 0
        self._open()
        if self.shared:
            self.close()

    def feed(self, data: bytes, stamp: bytes, _now: float = 0.0) -> None:
        """Add what was read of its one stream, with `stamp` before each line if there is one."""
        self.write(self._stamper.mark(data, stamp) if stamp else data)

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._dead:
                return
            try:
                if self._fd < 0:
                    self._open()
                self._add(data)
            except OSError as error:
                self._dead = True
                self.complain(f"cannot write {self.path} ({error.strerror}); the rest is dropped")
            if self.shared or self._dead:
                self.close()

    def close(self) -> None:
        """Close it. May be called again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):  # late news of a failed write
                os.close(fd)

    def _open(self) -> None:
        self._fd = self.folder.open_for_append(self.path)
        self._size = os.fstat(self._fd).st_size

    def _add(self, data: bytes) -> None:
        view = memoryview(data)
        position = 0
        while position < len(data):
            count, full = self._room(data, position)
            written = os.write(self._fd, view[position : position + count])
            self._size += written
            position += written
            if full and written == count:
                self._rotate()

    def _room(self, data: bytes, position: int) -> tuple[int, bool]:
        """Return how many bytes to add from this position, and whether the file is full then."""
        left, room = len(data) - position, self.limit - self._size
        if not self.limit or left < room:
            return left, False
        most = max(0, room + self.limit)
        end = data.find(b"\n", position + max(0, room - 1), position + most) + 1
        if end:
            return end - position, True
        return min(left, most), left >= most

    def _rotate(self) -> None:
        self.close()
        names = [self.path, *(f"{self.path}.{number + 1}" for number in range(GENERATIONS))]
        for old, new in reversed(list(pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                self.folder.rename(old, PurePath(new).name)
        self._open()


class LineFilter(LineHolder):
    """Adds those of a stream's lines to a file that contain one of the requested texts."""

    def __init__(self, needles: tuple[bytes, ...], prefix: bytes, file: LogFile) -> None:
        super().__init__()
        self._needles = needles
        self._prefix = prefix
        self._file = file

    def _emit(self, data: bytes, stamp: bytes) -> None:
        if not self._is_wanted(data):
            return
        head = stamp + self._prefix
        lines = data.replace(b"\r", b"\n").split(b"\n")
        chosen = [head + line + b"\n" for line in lines if line and self._is_wanted(line)]
        self._file.write(b"".join(chosen))

    def _is_wanted(self, data: bytes) -> bool:
        return any(needle in data for needle in self._needles)
