"""Counts what this node's workers have noted so far, while they run.

The workers' recordings hold the last notes only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from torsh_runtime.monitoring.layout import NOTES, file_beside
from torsh_runtime.monitoring.notes import OTHER, Note
from torsh_runtime.monitoring.pace import OF, PROGRESS, SAMPLES, TOTAL
from torsh_runtime.monitoring.window import Sections
from torshrun.health.recordings import read_notes
from torshrun.live.snapshot import Counted, Noted

MOST_NAMES = 20
"""Names of scalars, and of sections, that are counted; those that come later are left out."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Ledger:
    """Counts the notes of one node's workers, round after round. For one thread."""

    def __init__(self) -> None:
        self._file = ""
        self._since = 0.0
        self._workers: list[_Worker] = []
        self._names = {"scalar": _Names(), "section": _Names()}

    def read(self, status_file: str, count: int) -> Noted:
        """Return all that the round's `count` workers have noted until now."""
        if status_file != self._file:
            self._file, self._since = status_file, time.monotonic()
            self._workers = [_Worker(self._names) for _ in range(count)]
        with suppress(OSError):  # there is no such file, or it was cut short
            descriptor = os.open(file_beside(status_file), _FLAGS)
            try:
                for place, worker in enumerate(self._workers):
                    worker.take(*read_notes(descriptor, place, worker.seen))
            finally:
                os.close(descriptor)
        now = time.monotonic()
        dropped = {kind: len(names.dropped) for kind, names in self._names.items()}
        return Noted([worker.counted(now) for worker in self._workers], dropped, self._since)


class _Names:
    """Holds the first MOST_NAMES that came, and those that came later."""

    def __init__(self) -> None:
        self._kept: set[str] = set()
        self.dropped: set[str] = set()

    def keeps(self, name: str) -> bool:
        if name in self._kept:
            return True
        if name == OTHER or len(self._kept) >= MOST_NAMES:
            if len(self.dropped) < NOTES:
                self.dropped.add(name)
            return False
        self._kept.add(name)
        return True


class _Worker:
    def __init__(self, names: Mapping[str, _Names]) -> None:
        self.seen = 0
        self._names = names
        self._steps = self._lost = 0
        self._samples = 0.0
        self._scalars: dict[str, float] = {}
        self._sections = Sections()

    def take(self, begun: int, notes: Sequence[Note]) -> None:
        lost = max(begun - self.seen - len(notes), 0)
        if lost or begun < self.seen:  # another program of the worker's has begun anew
            self._sections.forget()
        self._lost += lost
        self.seen = begun
        for note in notes:
            self._take(note)

    def _take(self, note: Note) -> None:
        if note.kind == "step":
            self._steps += 1
        elif note.kind == "scalar" and note.name == SAMPLES:
            self._samples += note.value if 0 <= note.value < float("inf") else 0.0
        elif note.kind == "scalar":
            if note.name not in (OF, PROGRESS, TOTAL) and self._names["scalar"].keeps(note.name):
                self._scalars[note.name] = note.value
        elif self._names["section"].keeps(note.name):
            self._sections.take(note)

    def counted(self, now: float) -> Counted:
        running, ended = self._sections.running(now), self._sections.seconds
        names = dict.fromkeys((*ended, *running))
        sections = {name: ended.get(name, 0.0) + running.get(name, 0.0) for name in names}
        return Counted(self._steps, self._samples, dict(self._scalars), sections, self._lost)
