"""Runs the callbacks of a group's completed operations, all on one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from torsh_runtime.backends.contained import run_callback
from torsh_runtime.backends.native.compiled import _native

_IDLE = 1.0
"""Seconds after which a thread that nothing is left for ends."""


class Callbacks:
    """Runs the callbacks of a group in sequence, in the order in which operations end."""

    def __init__(self) -> None:
        self._over = _native.Completions()
        self._numbers = count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._is_running = False

    def when_over(self, pending: _native.Pending, call: Callable[[], None]) -> None:
        """Call it once that is over. What it raises is logged."""
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = call
            if not self._is_running:
                threading.Thread(target=self._run, name="torsh-callbacks", daemon=True).start()
                self._is_running = True
        pending.when_over(self._over, number)

    def _run(self) -> None:
        """Run callbacks until none are left."""
        while not self._is_idle(numbers := self._over.wait(_IDLE)):
            for number in numbers:
                self._call(number)

    def _call(self, number: int) -> None:
        with self._lock:
            call = self._waiting.pop(number)
        run_callback(call)

    def _is_idle(self, ended: list[int]) -> bool:
        with self._lock:
            self._is_running = bool(ended or self._waiting)
            return not self._is_running
