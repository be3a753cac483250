"""The end of this node's time: workers are noticed of it, and the node leaves before it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from torsh_runtime.transitions import Machine

MARGIN = 5.0
"""Seconds before the end by which nothing is to run any more."""


class TimeLimit:
    """Calls back before the end of a number of seconds, counted from when it is made."""

    def __init__(self, seconds: float | None, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.ends_at = None if seconds is None else loop.time() + seconds
        """When the time is over, on the monotonic clock; None is never."""
        self._timers: list[asyncio.TimerHandle] = []
        self._seen = Machine("time_limit", "idle")

    @property
    def left(self) -> float:
        """Return the seconds that are left of a time that has an end."""
        return max((self.ends_at or 0.0) - self._loop.time(), 0.0)

    def start(
        self,
        grace: float,
        notice: float,
        on_notice: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """Call on_notice() `notice` seconds before the end, unless that is 0, and on_end() in time
        for workers to have `grace` seconds.
        """
        if self.ends_at is None:
            return
        last = self.ends_at - grace - MARGIN
        self._seen.become("counting", f"{self.left:.0f} s are left")
        self._timers.append(self._loop.call_at(last, partial(self._reach, "over", on_end)))
        if notice:
            first = min(self.ends_at - notice, last)
            reach = partial(self._reach, "noticed", on_notice)
            self._timers.append(self._loop.call_at(first, reach))

    def _reach(self, state: str, call: Callable[[], None]) -> None:
        self._seen.become(state, f"{self.left:.0f} s are left")
        call()

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
