"""Watches the workers of a round from the agent's loop, and tells when they hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from torshrun.health.detector import Hang, Sample

_SHORTEST, _LONGEST = 0.2, 10.0
"""Seconds between two looks."""


class HangWatch:
    """Looks at one round's workers at a time. All methods belong to the loop's thread."""

    def __init__(
        self, timeout: float, loop: asyncio.AbstractEventLoop, on_hang: Callable[[Hang], None]
    ) -> None:
        """`timeout`: seconds without progress that are a hang; 0 never looks at all. `on_hang` is
        called once at most after each start().
        """
        self._timeout = timeout
        self._loop = loop
        self._on_hang = on_hang
        self._interval = min(max(timeout / 10, _SHORTEST), _LONGEST)
        self._timer: asyncio.TimerHandle | None = None

    def start(self, samples: Callable[[], Sequence[Sample] | None]) -> None:
        """Watch a round. `samples` tells of its workers, None while they wait for their reader."""
        self.stop()
        if self._timeout > 0:
            from torshrun.health.detector import HangDetector

            detector = HangDetector(self._timeout, patience=3 * self._interval + 1)

            def look() -> None:
                seen = samples()
                hang = detector.observe(self._loop.time(), seen) if seen is not None else None
                if seen is None:
                    detector.forget()
                if hang:
                    self._timer = None
                    self._on_hang(hang)
                else:
                    self._timer = self._loop.call_later(self._interval, look)

            self._timer = self._loop.call_later(self._interval, look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
