"""Reads from a worker's recording how fast it is, for the status line."""

from __future__ import annotations

import os

from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.pace import Pace, pace_of
from torshrun.health.recordings import read_notes

_SECONDS = 1.0


class PaceReader:
    """Reads at most once a second, since that takes milliseconds."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._found: Pace | None = None

    def read(self, status_file: str, local_rank: int, now: float) -> Pace | None:
        """Return the worker's pace; None if it has noted nothing, or cannot be read.

        `now` is in seconds of a monotonic clock.
        """
        if now - self._looked >= _SECONDS:
            self._looked = now
            self._found = _read(layout.file_beside(status_file), local_rank)
        return self._found


def _read(path: str, local_rank: int) -> Pace | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        _, notes = read_notes(descriptor, local_rank, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return pace_of(notes) if notes else None
