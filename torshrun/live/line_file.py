"""LineFile: whole lines to a file, a FIFO or a device, without ever waiting for it."""

from __future__ import annotations

import os
import select
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from torsh_runtime.errors import ConfigError
from torsh_runtime.events import Event
from torshrun.safe_files import APPEND, safe_open, trusted_uids

BACKLOG_BYTES = 16 << 20
"""The most bytes that wait for a file that does not take them."""
CLOSE_SECONDS = 2.0
"""Seconds that the end of the job waits for them."""
_TURN_SECONDS = 0.2  # how often a writer that waits for a reader looks whether it is still wanted
_SLOW_READER = "its reader does not keep up"
_END = b"", 0


class LineFile:
    """Adds lines to a file in a thread of its own, one write() each.

    Only whole lines are lost: when the backlog is full, or the file cannot be written. The first
    loss is told through `complain`, from either thread. All methods belong to one thread.
    """

    def __init__(self, path: str, complain: Callable[[str], None]) -> None:
        """Open the file. Raises ConfigError if it cannot be opened for writing."""
        self._path = path
        self._complain = complain
        self._fd = _open(path)
        self._lines: SimpleQueue[tuple[bytes, int]] = SimpleQueue()
        # Each of these numbers is one thread's: the first three the caller's, the others the own.
        self._put = self._refused = self._told = 0
        self._taken = self._failed = 0
        self._complained = False
        self._torn = False
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="torsh-events", daemon=True)
        self._thread.start()

    def record(self, event: Event) -> None:
        """Put a line about the event, and before it one with the number of lost lines, if any."""
        lost = self._refused + self._failed - self._told
        if lost:
            self._told += lost
            dropped = replace(event, name="events_dropped", facts={"count": lost})
            self.put(dropped.to_json(), lost)
        self.put(event.to_json())

    def put(self, line: bytes, worth: int = 1) -> None:
        """Write the line when the file takes it; one that is lost counts as `worth` lines."""
        if self._put - self._taken + len(line) <= BACKLOG_BYTES:
            self._put += len(line)
            self._lines.put((line, worth))
        else:
            self._refused += worth
            self._complain_once(_SLOW_READER)

    def close(self) -> None:
        """Write what is left, for CLOSE_SECONDS at most, and close the file."""
        self._give_up_at = time.monotonic() + CLOSE_SECONDS
        self._lines.put(_END)
        self._thread.join(CLOSE_SECONDS + 2 * _TURN_SECONDS)
        if self._thread.is_alive():  # in a write() that does not return; it ends with the process
            self._complain_once("it does not take them")

    def _run(self) -> None:
        for line, worth in iter(self._lines.get, _END):
            self._taken += len(line)
            self._write(line, worth)
        os.close(self._fd)

    def _write(self, line: bytes, worth: int) -> None:
        view = memoryview(b"\n" + line if self._torn else line)
        whole = len(view)
        try:
            while view:
                view = view[self._write_some(view) :]
            self._torn = False
        except OSError as error:
            self._torn = self._torn or len(view) < whole
            self._failed += worth
            self._complain_once(error.strerror or str(error))

    def _write_some(self, view: memoryview) -> int:
        """Write what the file takes. Raises TimeoutError if it takes nothing until the end."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while True:
            try:
                return os.write(self._fd, view)
            except BlockingIOError:
                if time.monotonic() > self._give_up_at:
                    raise TimeoutError(0, _SLOW_READER) from None
                poll.poll(_TURN_SECONDS * 1000)

    def _complain_once(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            self._complain(f"error: cannot write events to {self._path} ({why}); some are lost")


def _open(path: str) -> int:
    """Open the file for writing. A FIFO is also opened for reading, so that readers may come and
    go.

    Raises ConfigError.
    """
    try:
        access = os.O_RDWR if Path(path).is_fifo() else os.O_WRONLY
        descriptor = safe_open(path, access | APPEND | os.O_NONBLOCK)
        file, why = os.fstat(descriptor), ""
        if stat.S_ISBLK(file.st_mode):
            why = "it is a disk"
        elif stat.S_ISREG(file.st_mode) and file.st_uid not in trusted_uids():
            why = f"it belongs to another user, of uid {file.st_uid}"
        elif stat.S_ISREG(file.st_mode) and file.st_nlink > 1:
            why = "it has other names, too: hard links"
        if not why:
            return descriptor
        os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
    raise ConfigError(
        f"--events: cannot write to {path} ({why}). Name a file in a directory that you may "
        f"write to, or - for stdout."
    )
