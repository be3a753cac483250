"""Gives GPU memory of a group back until its next operation."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module

from torsh_runtime.backends.nccl.flights import Flight
from torsh_runtime.backends.nccl.registering import NcclRegistering

_SINCE = (2, 29, 7)
"""The first version of NCCL that can suspend communicators."""
_PAUSE = 0.001
"""Seconds between two looks at what the GPU has yet to do."""


class NcclSuspending(NcclRegistering):
    """A group over an NCCL communicator, whose memory can be given back for a while."""

    def suspend(self, timeout: float) -> None:
        with self._in_turn("suspend", timeout):
            self._check_usable()
            if self._is_captured:
                self._check_not_captured()
            if self._is_suspended:
                return
            while self._flights and not self.failed:  # the watcher knows their deadlines
                self._sweep()
                time.sleep(_PAUSE)
            self._check_usable()
            self._own.free.clear()
            self._deregister_all()
            if _can_suspend():
                self._is_suspended = True
                self._with_all_ranks("suspend", self._communicator.suspend, timeout)

    def resume(self, timeout: float) -> None:
        with self._in_turn("resume", timeout):
            self._check_usable()
            if self._is_suspended:
                self._with_all_ranks("resume", self._communicator.resume, timeout)
                self._is_suspended = False

    def _with_all_ranks(self, op: str, call: Callable[[], object], timeout: float) -> None:
        """Call what blocks until all ranks have called it; the watcher ends it at the deadline."""
        self._sequence += 1
        now = time.monotonic()
        flight = Flight(op, self._sequence, timeout=timeout, began=now, next_look=now)
        self._beginning = flight
        if self._watcher.is_asleep:
            self._watcher.wake()
        try:
            with self._on_device():
                call()
        except Exception as error:
            cause = self.broke(flight, error)
            self.told()
            raise cause.error() from error
        finally:
            self._beginning = None
        self._check_usable()


def _can_suspend() -> bool:
    found = import_module("nccl.core").get_version().libnccl
    return bool(found and found.version.release >= _SINCE)
