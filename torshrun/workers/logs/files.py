"""Files that keep output: appended to, never truncated, renamed when they are large."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePath

from torshrun.safe_files import Folder
from torshrun.workers.logs.lines import LineStamper

GENERATIONS = 5
"""Renamed files that are kept, <name>.1 (the latest) to <name>.5."""


class LogFile:
    """A file below `folder` that is renamed to <path>.1 at the first line end from `limit` bytes
    on, and at twice as many bytes at the latest; 0 is never. All methods raise OSError.
    """

    def __init__(self, folder: Folder, path: str, limit: int) -> None:
        self._folder = folder
        self._path = path
        self._limit = limit
        self._fd = -1
        self._size = 0
        self._open()

    def write(self, data: bytes) -> None:
        """Add all of it."""
        view = memoryview(data)
        position = 0
        while position < len(data):
            count, full = self._room(data, position)
            self._append(view[position : position + count])
            position += count
            if full:
                self._rotate()

    def close(self) -> None:
        """Close it. May be called again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _open(self) -> None:
        self._fd = self._folder.open_for_append(self._path)
        self._size = os.fstat(self._fd).st_size

    def _room(self, data: bytes, position: int) -> tuple[int, bool]:
        """How much to add from this position, and whether the file is full then."""
        left, room = len(data) - position, self._limit - self._size
        if not self._limit or left < room:
            return left, False
        most = max(0, room + self._limit)
        end = data.find(b"\n", position + max(0, room - 1), position + most) + 1
        if end:
            return end - position, True
        return min(left, most), left >= most

    def _append(self, view: memoryview) -> None:
        while view:
            count = os.write(self._fd, view)
            self._size += count
            view = view[count:]

    def _rotate(self) -> None:
        self.close()
        names = [self._path, *(f"{self._path}.{number + 1}" for number in range(GENERATIONS))]
        for old, new in reversed(list(pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                self._folder.rename(old, PurePath(new).name)
        self._open()


class StreamFile:
    """Keeps one stream, byte for byte but for the times. Used by one thread only."""

    def __init__(
        self, folder: Folder, path: str, limit: int, complain: Callable[[str], None]
    ) -> None:
        self._path = path
        self._file = LogFile(folder, path, limit)
        self._stamper = LineStamper()
        self._complain = complain
        self._dead = False

    def feed(self, data: bytes, stamp: bytes) -> None:
        """Add what was read, with `stamp` before each line if there is one."""
        if self._dead:
            return
        try:
            self._file.write(self._stamper.mark(data, stamp) if stamp else data)
        except OSError as error:  # give the file up, not the worker
            self._complain(f"cannot write {self._path} ({error.strerror}); the rest is dropped")
            self.close()
            self._dead = True

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # late news of a failed write
            self._file.close()


class SharedFile:
    """A file for chosen lines of many streams. It is open only while it is written to. For any
    thread.
    """

    def __init__(
        self, folder: Folder, path: str, limit: int, complain: Callable[[str], None]
    ) -> None:
        self.path = path
        self._folder = folder
        self._limit = limit
        self._complain = complain
        self._lock = threading.Lock()
        self._dead = False
        LogFile(folder, path, limit).close()

    def write(self, lines: bytes) -> None:
        """Add whole lines."""
        with self._lock:
            if self._dead:
                return
            try:
                with contextlib.closing(LogFile(self._folder, self.path, self._limit)) as file:
                    file.write(lines)
            except OSError as error:
                self._dead = True
                reason = error.strerror
                self._complain(f"cannot write {self.path} ({reason}); the rest is dropped")
