"""Reports clients that were refused: soon, but without a report for each client of a flood."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MAX_REASONS = 16
"""The largest number of different reasons that are counted separately at a time."""
_OTHER = "further clients for other reasons"


class Refusals:
    """Passes each reason to `tell` at once, and after `seconds` how often it has occurred again.

    Use it within an event loop.
    """

    def __init__(self, tell: Callable[[str], None], seconds: float) -> None:
        self._tell = tell
        self._seconds = seconds
        self._more: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def note(self, reason: str) -> None:
        """Count a client that was refused; `reason` is a few words."""
        if reason not in self._more and len(self._more) >= MAX_REASONS:
            reason = _OTHER
        if reason in self._more:
            self._more[reason] += 1
            return
        self._tell(reason)
        self._count(reason)

    def close(self) -> None:
        """Report the counts that are still pending."""
        for reason in [*self._more]:
            self._timers.pop(reason).cancel()
            self._tell_more(reason)

    def _count(self, reason: str) -> None:
        self._more[reason] = 0
        loop = asyncio.get_running_loop()
        self._timers[reason] = loop.call_later(self._seconds, self._look, reason)

    def _look(self, reason: str) -> None:
        del self._timers[reason]
        if self._tell_more(reason):
            self._count(reason)

    def _tell_more(self, reason: str) -> bool:
        more = self._more.pop(reason)
        if more:
            self._tell(f"{reason} … and {more} more")
        return more > 0
