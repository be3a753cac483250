"""A deterministic asyncio loop on a virtual clock: time passes only when nothing is to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any

STANDSTILL = 100_000
"""Turns of the loop in one moment after which the time will never pass again."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines that use timers and each other only: no descriptors, no threads.

    asyncio's own loop keeps its timers in a heap of objects that are compared in Python, which is
    most of the work of a simulation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = count()

    def time(self) -> float:
        return self._now

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._number), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until its time has come."""

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        self._turns += 1
        if not ready:
            self._let_time_pass()
        elif self._turns > STANDSTILL:
            raise RuntimeError(f"the time stands still at {self._now}")
        while timers and timers[0][0] <= self._now:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _let_time_pass(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            raise RuntimeError("nothing will ever happen again: a task waits without a deadline")
        if timers[0][0] > self._now:
            self._now, self._turns = timers[0][0], 0
