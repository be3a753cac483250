"""A deterministic asyncio loop on a virtual clock: time passes only when nothing is to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any

STANDSTILL = 100_000
"""Turns of the loop in one moment after which the time will never pass again."""

END: ContextVar[str] = ContextVar("END", default="")
"""Whose code runs: an agent's name, or "" for the world around the agents."""


class Handle:
    """A callback. asyncio's own costs several times as much, and thousands are made a second."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "is_timer")

    def __init__(
        self, callback: Callable[..., object], args: Any, context: Context | None, is_timer: bool
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context if context is not None else copy_context()
        self.is_cancelled = False
        self.is_timer = is_timer

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines that use timers and each other only: no descriptors, no threads.

    An end may stand still, as a stopped process does: nothing of it runs until it moves again, and
    then first what has come in meanwhile, and after that the timers that should have fired.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._timers: list[tuple[float, int, Handle]] = []
        self._number = count()
        self._still: dict[str, list[Handle]] = {}

    def time(self) -> float:
        return self._now

    def stand_still(self, end: str) -> None:
        self._still.setdefault(end, [])

    def move(self, end: str) -> None:
        held = self._still.pop(end, [])
        self._ready.extend(sorted(held, key=lambda handle: handle.is_timer))

    # ---- what asyncio asks of a loop

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context, False)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, context, True)
        heappush(self._timers, (self._now + delay, next(self._number), handle))
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, context, True)
        heappush(self._timers, (when, next(self._number), handle))
        return handle

    def _run_once(self) -> None:
        ready, timers, still = self._ready, self._timers, self._still
        self._turns += 1
        if not ready:
            self._let_time_pass()
        elif self._turns > STANDSTILL:
            raise RuntimeError(f"the time stands still at {self._now}")
        now = self._now
        while timers and timers[0][0] <= now:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            if still and (held := still.get(handle.context.get(END, ""))) is not None:
                held.append(handle)
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": "in a callback", "exception": error})

    def _let_time_pass(self) -> None:
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heappop(timers)
        if not timers:
            raise RuntimeError("nothing will ever happen again: a task waits without a deadline")
        if timers[0][0] > self._now:
            self._now, self._turns = timers[0][0], 0
