"""The agent's signs of life to its keeper, and its sleep when a terminal suspends it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torsh_runtime.transitions import Machine
from torshrun.workers.group import WorkerGroup

if TYPE_CHECKING:
    import asyncio

RENEWALS_PER_TIMEOUT = 4
"""Number of times that the timer is armed again before it could run out."""


@dataclass(eq=False)
class Watchdog:
    """Arms the keeper's dead-man timer again and again while the agent's loop runs."""

    group: WorkerGroup
    timeout: float
    """Seconds without a renewal after which the keeper kills; 0 is never."""
    on_heartbeat: Callable[[], None]
    """Is called once a second or more often."""
    _granted: float | None = None
    _next: asyncio.TimerHandle | None = None
    _seen: Machine = field(default_factory=lambda: Machine("watchdog", "idle"))

    def renew(self) -> None:
        self.stop()
        pause = min(1.0, self.timeout / RENEWALS_PER_TIMEOUT) if self.timeout else 1.0
        self._arm(time.monotonic() + self.timeout if self.timeout else math.inf)
        self._next = self.group.loop.call_later(pause, self.renew)
        self._seen.become("armed", "until a grant ends" if self._granted is not None else "")
        self.on_heartbeat()

    def grant(self, until: float) -> None:
        """Let workers run until then, on time.monotonic(), unless more is granted."""
        self._granted = until
        if self._next is not None:
            self.renew()

    @property
    def expired(self) -> bool:
        return self._granted is not None and time.monotonic() >= self._granted

    def _arm(self, deadline: float) -> None:
        """Arm the keeper's timer.

        The machine's own sleep counts against a grant, and not against heartbeats.
        """
        if self._granted is not None:
            left = min(deadline, self._granted) - time.monotonic()
            now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self.group.keeper.arm(now + int(left * 1e9), counts_suspend=True)
        elif deadline < math.inf:
            self.group.keeper.arm(int(deadline * 1e9), counts_suspend=False)
        else:
            self.group.keeper.arm(0, counts_suspend=False)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def suspend(self) -> None:
        """Do what Ctrl-Z asks for: stop the workers and this process until somebody resumes it."""
        beating = self._next is not None  # at the end there is nobody to be woken by
        if beating:
            self.stop()
            self._arm(math.inf)
            self._seen.become("suspended", "SIGTSTP")
            self.group.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if beating:
            self.renew()  # first: whoever stops this process now must not leave them running
            self.group.send(signal.SIGCONT)
