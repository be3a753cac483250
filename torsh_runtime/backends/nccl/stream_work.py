"""The Works of operations on streams."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Protocol

from torsh_runtime.backends.contained import run_callback
from torsh_runtime.backends.library.failure_notifications import Call
from torsh_runtime.backends.nccl.flights import Flight
from torsh_runtime.backends.work import Work, in_seconds
from torsh_runtime.errors import CommTimeout

_PAUSE = 0.0005
"""Seconds between two tests of an event by a thread that waits for it."""


class Group(Protocol):
    """Lists what a Work needs of its group."""

    def is_over(self, flight: Flight) -> bool:
        """Return whether an operation is over, successfully or not."""

    def hold_back(self, flight: Flight) -> bool:
        """Make the current streams wait for an operation; return False if it is over."""

    def lead(self, flight: Flight) -> None:
        """Make the current streams wait for an operation that was captured with them."""

    def call_back(self, flight: Flight, callback: Callable[[], None]) -> None:
        """Call it when the operation is over; at once if that is so."""

    def missing(self, call: Call) -> list[int]:
        """Return the ranks that an operation seems to wait for."""

    def told(self) -> None:
        """Note that the program hears of the failure that the group has ended with."""


class StreamWork(Work):
    """An operation on a stream. `wait()` makes the current stream wait; `wait(timeout)`, and that
    of a barrier, the processor. Callbacks are called by a thread of their own.
    """

    def __init__(self, group: Group, flight: Flight) -> None:
        self._group = group
        self._flight = flight

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        flight = self._flight
        if timeout is not None or flight.op == "barrier":
            self._wait_on_processor(in_seconds(timeout))
        elif not flight.is_over:
            if flight.end is None:
                raise RuntimeError("the operation is launched when its block ends; wait after that")
            if self._group.hold_back(flight):
                return True
        if flight.failure is not None:
            self._group.told()
            raise flight.failure.error()
        return True

    def _wait_on_processor(self, seconds: float | None) -> None:
        if self.done():
            return
        noted, began = self._flight.noted, time.monotonic()
        limit = math.inf if seconds is None else began + seconds
        with noted.waited_for() if noted is not None else nullcontext():
            while not self.done():
                if (now := time.monotonic()) >= limit:
                    missing = self._group.missing(self._flight)
                    call = self._flight.op, self._flight.sequence
                    raise CommTimeout(*call, limit - began, missing)
                time.sleep(min(limit - now, _PAUSE))

    def done(self) -> bool:
        return self._flight.is_over or self._group.is_over(self._flight)

    def exception(self) -> BaseException | None:
        failure = self._flight.failure
        return None if failure is None else failure.error()

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        self._group.call_back(self._flight, lambda: callback(self))

    @property
    def source(self) -> int | None:
        return self._flight.source


class CapturedWork(Work):
    """An operation that was captured in a CUDA graph: it runs when that is replayed.

    `wait()` makes the current stream wait within the graph; nothing else is to be waited for.
    """

    def __init__(self, group: Group, flight: Flight) -> None:
        self._group = group
        self._flight = flight

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        if self._flight.end is None:
            raise RuntimeError("the operation is captured when its block ends; wait after that")
        self._group.lead(self._flight)
        return True

    def done(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return None

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        run_callback(lambda: callback(self))
