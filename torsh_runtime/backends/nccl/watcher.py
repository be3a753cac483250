"""The one thread of the process that watches what its GPUs are doing for NCCL groups."""

from __future__ import annotations

import os
import threading
from typing import Protocol

from torsh_runtime.backends.nccl.streams import Captures

_LOOK_AROUND = 0.05
"""Seconds between two looks while something is under way."""
_LOOK_AT_COMPANIONS = 1.0
"""Seconds between two looks whether another backend of a group has failed, at other times."""
_PATIENCE = 5.0
"""Seconds that a group which closes waits for the look at it to end."""


class Watched(Protocol):
    """Lists what the watcher needs of a group."""

    looking: threading.RLock
    """Held while the watcher looks at the group."""

    @property
    def is_busy(self) -> bool:
        """Return whether something is under way."""

    @property
    def has_companion(self) -> bool:
        """Return whether another backend, which may fail at any time, forms one group with it."""

    def watch(self) -> None:
        """Look after what is under way."""


class Watcher:
    """Looks at each group in turn, and sleeps while nothing is under way in any of them.

    The thread exists as long as there are groups.
    """

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        self._groups: list[Watched] = []
        self._change = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_asleep = False
        """Whether a group that has something under way has to call wake()."""

    def add(self, group: Watched) -> None:
        """Watch a group from now on."""
        with self._change:
            self._groups.append(group)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="torsh-nccl", daemon=True)
                self._thread.start()
        self.wake()

    def remove(self, group: Watched) -> None:
        """Do not look at a group any more; return when a look at it has ended."""
        with self._change:
            if group in self._groups:
                self._groups.remove(group)
        self.wake()
        if group.looking.acquire(timeout=_PATIENCE):
            group.looking.release()

    @property
    def is_current(self) -> bool:
        """Return whether the calling thread is the one that watches."""
        return threading.current_thread() is self._thread

    def wake(self) -> None:
        """Look at the groups now."""
        self.is_asleep = False
        self._wake.set()

    def _run(self) -> None:
        self._captures.tolerate()
        while self._goes_on():
            for group in tuple(self._groups):
                with group.looking:
                    if group in self._groups:
                        group.watch()
            if any(group.is_busy for group in tuple(self._groups)):
                self._wake.wait(_LOOK_AROUND)
                self._wake.clear()
            else:
                self._sleep()

    def _goes_on(self) -> bool:
        with self._change:
            if not self._groups:
                self._thread = None
            return self._thread is not None

    def _sleep(self) -> None:
        self.is_asleep = True
        groups = tuple(self._groups)
        if groups and not any(group.is_busy for group in groups):
            has_companions = any(group.has_companion for group in groups)
            self._wake.wait(_LOOK_AT_COMPANIONS if has_companions else None)
        self.is_asleep = False
        self._wake.clear()


_watchers: list[Watcher] = []
_first = threading.Lock()


def own_watcher() -> Watcher:
    """Return the watcher of this process."""
    with _first:
        if not _watchers:
            _watchers.append(Watcher(Captures()))
        return _watchers[0]


os.register_at_fork(after_in_child=_watchers.clear)
