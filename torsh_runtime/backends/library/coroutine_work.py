"""Operations of another library as steps, and the Work that takes them.

An operation is a generator. It checks its arguments, begins what the library has to do, yields
each thing it has to wait for, and finishes the result. Whoever waits for its Work drives it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Protocol

from torsh_runtime.backends.contained import run_callback
from torsh_runtime.backends.library.failure_notifications import Call, FailureCause
from torsh_runtime.backends.work import Work, in_seconds
from torsh_runtime.errors import CommError, CommTimeout

_REST = 0.02
"""The longest pause, in seconds, between two tests of something that makes no progress."""


class Request(Protocol):
    """Something that a library is doing."""

    def test(self) -> bool:
        """Return whether it is complete. Raises the error with which it failed."""

    def rest(self, seconds: float, waited: float) -> None:
        """Let others run for at most `seconds`, after having waited for `waited` seconds."""


Steps = Generator[Request, None, int | None]
"""Yields what to wait for next; returns the rank that a message came from, None otherwise."""


class Group(Protocol):
    """Lists what an operation under way needs of its group."""

    @property
    def look_every(self) -> float:
        """Return the seconds of waiting between two reads of the other ranks' notes."""

    def ended(self) -> FailureCause | None:
        """Return why no operation can complete any more, or None if operations still can."""

    def look(self, call: Call) -> None:
        """Find out whether the others still come; if not, the group ends."""

    def broke(self, call: Call, error: Exception) -> FailureCause:
        """End the group because the library has failed, and return the cause."""

    def late(self, call: Call, seconds: float) -> FailureCause:
        """End the group because the operation has passed its deadline, and return the cause."""

    def missing(self, call: Call) -> list[int]:
        """Return the ranks that an operation seems to wait for."""

    def get_on(self) -> None:
        """Advance the other operations: the peers' may wait for them."""

    def completed(self, work: CoroutineWork) -> None:
        """Note that the library has released the operation's arrays."""


class CoroutineWork(Work):
    """An operation under way. It gets on, and its callbacks run, when somebody waits for it or
    asks whether it is done.
    """

    def __init__(
        self, group: Group, call: Call, steps: Steps, request: Request, timeout: float
    ) -> None:
        self.call = call
        self._group = group
        self._steps = steps
        self._request = request
        self._timeout = timeout
        self._began = time.monotonic()
        self._next_look = self._began + group.look_every
        self._lock = threading.RLock()
        self._over = False
        self._error: CommError | None = None
        self._source: int | None = None
        self._callbacks: list[Callable[[Work], None]] = []

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        began = time.monotonic()
        seconds = in_seconds(timeout)
        limit = math.inf if seconds is None else began + seconds
        if self.done():
            return self._ended_well()
        noted = self.call.noted
        with noted.waited_for() if noted is not None else nullcontext():
            self._drive(began, limit)
        return self._ended_well()

    def _ended_well(self) -> bool:
        if self._error is not None:
            raise self._error
        return True

    def _drive(self, began: float, limit: float) -> None:
        while not self.done():
            now = time.monotonic()
            if now >= limit:
                missing = self._group.missing(self.call)
                raise CommTimeout(self.call.op, self.call.sequence, limit - began, missing)
            deadline = self._began + self._timeout
            self._request.rest(max(0.0, min(limit, deadline, now + _REST) - now), now - began)
            self._group.get_on()

    def done(self) -> bool:
        with self._lock:
            if not self._over:
                self._advance()
            callbacks = self._take_callbacks()
        for callback in callbacks:
            run_callback(partial(callback, self))
        return self._over

    def exception(self) -> BaseException | None:
        return self._error

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        self._callbacks.append(callback)
        self.done()

    @property
    def source(self) -> int | None:
        return self._source

    def _take_callbacks(self) -> list[Callable[[Work], None]]:
        taken: list[Callable[[Work], None]] = []
        if self._over:
            taken, self._callbacks = self._callbacks, []
        return taken

    def _advance(self) -> None:
        try:
            while self._request.test():
                self._request = next(self._steps)
        except StopIteration as end:
            self._source = end.value
            self._over = True
            if self.call.noted is not None:
                self.call.noted.leave(False, self._source)
            self._group.completed(self)
        except Exception as error:
            self._fail(self._group.broke(self.call, error))
        else:
            self._look_around()

    def _look_around(self) -> None:
        now = time.monotonic()
        if now - self._began >= self._timeout and self._group.ended() is None:
            self._group.late(self.call, self._timeout)
        elif now >= self._next_look:
            self._next_look = now + self._group.look_every
            self._group.look(self.call)
        cause = self._group.ended()
        if cause is not None:
            self._fail(cause)

    def _fail(self, cause: FailureCause) -> None:
        self._error = cause.error()
        self._over = True
        if self.call.noted is not None:
            self.call.noted.leave(True)
