"""Runs callbacks, and reads of other ranks' notes, in threads of their own.

So one that waits, also for a store that does not answer, holds up no deadline.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable

from torsh_runtime.backends.contained import run_callback

Callback = Callable[[], object]


class Callbacks:
    """Runs callbacks one after the other. The thread exists as long as there are any."""

    def __init__(self, name: str) -> None:
        """Create the queue of the thread with this name."""
        self._name = name
        self._lock = threading.RLock()  # finalizers of what is let go of may begin operations
        self._waiting: deque[Callback] = deque()
        self._is_running = False

    def add(self, callbacks: Iterable[Callback]) -> None:
        """Run these callbacks soon."""
        with self._lock:
            self._waiting.extend(callbacks)
            if self._is_running or not self._waiting:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # no thread can be started, as at the end of the program
            self._run()

    def _run(self) -> None:
        while (callback := self._next()) is not None:
            run_callback(callback)
            del callback

    def _next(self) -> Callback | None:
        with self._lock:
            self._is_running = bool(self._waiting)
            return self._waiting.popleft() if self._is_running else None


_callbacks: list[Callbacks] = []
_looks: list[Callbacks] = []


def run_soon(callbacks: Iterable[Callback]) -> None:
    """Run these callbacks of operations in the thread for those of all groups."""
    _run(_callbacks, "torsh-nccl-callbacks", callbacks)


def look_soon(look: Callback) -> None:
    """Read other ranks' notes in the thread that does so for all groups."""
    _run(_looks, "torsh-nccl-notes", [look])


def _run(own: list[Callbacks], name: str, callbacks: Iterable[Callback]) -> None:
    if not own:
        own.append(Callbacks(name))
    own[0].add(callbacks)


for _each in (_callbacks, _looks):
    os.register_at_fork(after_in_child=_each.clear)  # the child has no such thread
