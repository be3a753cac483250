"""Keeps of each operation what is needed until the GPU has done it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torsh_runtime.backends.contained import run_callback
from torsh_runtime.backends.library.failure_notifications import Call, FailureCause
from torsh_runtime.backends.nccl.callbacks import run_soon
from torsh_runtime.backends.nccl.device import Framework
from torsh_runtime.backends.nccl.library import Event
from torsh_runtime.backends.nccl.streams import OwnStream

PER_THREAD = 2
"""The handle of the default stream of whichever thread, CU_STREAMPER_THREAD."""


@dataclass(slots=True, eq=False)
class Flight(Call):
    """Represents an operation from its call until the GPU has done it.

    Once the stream that it followed waits for it, it holds no array: whoever frees one does so in
    the order of that stream, so that its memory is not used again before.
    """

    timeout: float = 0.0
    began: float = 0.0
    next_look: float = 0.0
    """The time to look at the other ranks' notes again, in seconds of time.monotonic()."""
    started: float | None = None
    """The time at which it was noticed that the GPU has come to it, of time.monotonic()."""
    operands: Sequence[object] = ()
    """Arrays that are in use until it is over."""
    frameworks: Collection[Framework] = ()
    followed: Collection[int] = ()
    """Handles of the callers' streams that it came behind."""
    start: Event | None = None
    end: Event | None = None
    """Behind it on the group's stream; None as long as it is not launched."""
    shares_events: bool = False
    """A later operation of the same launch gives the events back."""
    sender: int | None = None
    """The rank that a message comes from."""
    is_blocking: bool = False
    """The call that began it returns a result: the caller's stream goes on behind it."""
    is_awaited: bool = False
    """A stream goes on when it is over, whatever it has ended with."""
    is_captured: bool = False
    """The operation runs when a CUDA graph is replayed, and not by itself."""
    is_over: bool = False
    failure: FailureCause | None = None
    """The failure it has ended with, if any. An error would hold the frames that it passes."""
    callbacks: Sequence[Callable[[], None]] = ()

    def be_on_callers_stream(self, handle: int) -> None:
        """Note that the operation is on the stream of its caller, which thus waits for it."""
        self.is_awaited = True
        if handle != PER_THREAD:
            self.operands = ()

    @property
    def source(self) -> int | None:
        """Return the rank that a message has come from; None before it has come."""
        return self.sender if self.is_over and self.failure is None else None


class Flights:
    """The operations on a group's stream that are not over, in order."""

    def __init__(self, own: OwnStream) -> None:
        """Keep operations on `own`."""
        self._own = own
        self._all: deque[Flight] = deque()
        self._lock = threading.RLock()  # what it lets go of may have finalizers
        self.append = self._all.append

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def head(self) -> Flight | None:
        """Return the operation that the GPU is doing or comes to next."""
        try:
            return self._all[0]
        except IndexError:
            return None

    def sweep(self, check: Callable[[], None]) -> None:
        """Release what the GPU has done, unless `check` raises the error that NCCL failed with."""
        with self._lock:
            over = self._landed()
            check()  # after it: a stream goes on when NCCL has given up
            for flight in over:
                self._all.popleft()
                self._release(flight)
        _call_back(over)

    def _landed(self) -> list[Flight]:
        over: list[Flight] = []
        for flight in self._all:
            if flight.end is None or not flight.end.is_done:
                break
            over.append(flight)
        return over

    def notice_start(self, flight: Flight) -> None:
        """Note whether the GPU has come to the operation."""
        with self._lock:
            if not flight.has_started and flight.start is not None and flight.start.is_done:
                flight.started, flight.has_started = time.monotonic(), True

    def is_over(self, flight: Flight, check: Callable[[], None]) -> bool:
        """Return whether the GPU has done an operation, after a sweep if it has."""
        with self._lock:
            if flight.is_over or flight.end is None or not flight.end.is_done:
                return flight.is_over
        self.sweep(check)  # all before it is done, too
        return flight.is_over

    def hold_back(self, flight: Flight, callers: Collection[int]) -> bool:
        """Make these streams wait for an operation; False if it is over, which is enough.

        The device is current.
        """
        with self._lock:
            if flight.is_over or flight.end is None:
                return False
            for handle in callers:
                self._own.caller(handle).wait(flight.end)
            flight.is_awaited = True
            if set(flight.followed) <= set(callers) - {PER_THREAD}:
                flight.operands = ()
        return True

    def call_back(self, flight: Flight, callback: Callable[[], None]) -> None:
        """Call it when the operation is over; at once if that is so."""
        with self._lock:
            is_over = flight.is_over
            if not is_over:
                flight.callbacks = [*flight.callbacks, callback]
        if is_over:
            run_callback(callback)

    def fail(self, cause: FailureCause, others: Sequence[Flight] = ()) -> bool:
        """End all operations, and `others`, with a failure.

        Return whether streams wait for some of them, and will go on with arbitrary numbers.
        """
        with self._lock:
            lost = [flight for flight in (*self._all, *others) if not flight.is_over]
            self._all.clear()
            for flight in lost:
                flight.failure = cause
                self._release(flight)
        _call_back(lost)
        return any(flight.is_awaited for flight in lost)

    def _release(self, flight: Flight) -> None:
        flight.is_over = True
        flight.operands = ()
        if flight.noted is not None:
            flight.noted.leave(flight.failure is not None, flight.source)
        if flight.start is not None and flight.end is not None and not flight.shares_events:
            self._own.free += (flight.start, flight.end)
        flight.start = flight.end = None


def _call_back(flights: Sequence[Flight]) -> None:
    for flight in flights:
        callbacks, flight.callbacks = flight.callbacks, ()
        run_soon(callbacks)
