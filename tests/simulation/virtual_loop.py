"""A deterministic asyncio loop on a virtual clock: time passes only when nothing is to be done."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs coroutines that use timers and each other only: no descriptors, no threads."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Skip(self))

    def time(self) -> float:
        return self.now


STANDSTILL = 100_000
"""Turns of the loop in one moment after which the time will never pass again."""


class _Skip(selectors.SelectSelector):
    """Instead of waiting for descriptors it lets the time pass."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again: a task waits without a deadline")
        self._turns = 0 if timeout > 0 else self._turns + 1
        if self._turns > STANDSTILL:
            raise RuntimeError(f"the time stands still at {self._loop.now}")
        self._loop.now += max(timeout, 0)
        return []
