"""The agent's signs of life to its keeper, and its sleep when a terminal suspends it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torshrun.workers.group import WorkerGroup
from torshrun.workers.keeper import Keeper

if TYPE_CHECKING:
    import asyncio

BEATS_PER_TIMEOUT = 4
"""How often the timer is armed again before it could run out."""


class Heart:
    """Arms the keeper's dead-man timer again and again while the agent's loop runs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        keeper: Keeper,
        timeout: float,
        on_beat: Callable[[], None],
    ) -> None:
        """`timeout`: seconds without a beat after which the keeper kills; 0 is never. `on_beat` is
        called once a second or more often.
        """
        self._loop = loop
        self._keeper = keeper
        self._timeout = timeout
        self._on_beat = on_beat
        self._next: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        """Begin, or begin again. Time in which the machine itself sleeps does not count."""
        self.stop()
        pause = 1.0
        if self._timeout:
            self._keeper.arm(time.monotonic_ns() + int(self._timeout * 1e9), counts_suspend=False)
            pause = min(pause, self._timeout / BEATS_PER_TIMEOUT)
        self._next = self._loop.call_later(pause, self.beat)
        self._on_beat()

    def stop(self) -> None:
        """Beat no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def suspend(self, group: WorkerGroup) -> None:
        """Do what Ctrl-Z asks for: stop the workers and this process until somebody resumes it."""
        beating = self._next is not None  # at the end there is nobody to be woken by
        if beating:
            self.stop()
            self._keeper.arm(0, counts_suspend=False)
            group.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if beating:
            group.send(signal.SIGCONT)
            self.beat()
