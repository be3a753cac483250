"""Gives processes that workers left running time to end, before they are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from torshrun.procfs import tree
from torshrun.workers.keeper import LEFTOVERS, Keeper

QUIET = 1.0
"""Seconds in which helpers may end without a message."""
LAST_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
MOST_NAMED = 8
"""Processes that a line names."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two looks."""

Stage = Literal["left", "terminated", "killed"]
"""Stage of the processes: they are given time, got SIGTERM, or are about to get SIGKILL."""


@dataclass(eq=False)
class Leftovers:
    """Waits for them, in the loop's thread; whoever calls stop() has them killed."""

    keeper: Keeper
    loop: asyncio.AbstractEventLoop
    grace: float
    """Seconds until they get SIGTERM; with 0 they get SIGKILL at once."""
    tell: Callable[[Stage, Sequence[int], float], None]
    """Called with their pids, and the seconds until the next stage."""
    over: Callable[[], None]
    """Called when none is left, or what is left is to be killed."""
    _terminated: set[int] = field(default_factory=set)
    _pause: float = FIRST_PAUSE
    _told: bool = False
    _next: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._quiet_until = self.loop.time() + QUIET
        self._term_at = self.loop.time() + self.grace
        self._kill_at = self._term_at + (LAST_GRACE if self.grace else 0.0)
        self._ask()

    def terminate(self) -> None:
        """Send SIGTERM now."""
        now = self.loop.time()
        self._term_at, self._kill_at = min(self._term_at, now), min(self._kill_at, now + LAST_GRACE)

    def stop(self) -> None:
        if self._next:
            self._next.cancel()

    def take(self, pids: Sequence[int]) -> None:
        """Handle the keeper's answer, which is that the processes `pids` are left."""
        now = self.loop.time()
        if not pids or now >= self._kill_at:
            if pids:
                self.tell("killed", pids, 0.0)
            self.over()
            return
        if now >= self._term_at:
            self._terminate(pids)
        elif not self._told and now >= self._quiet_until:
            self._told = True
            self.tell("left", pids, self._term_at - now)
        self._next = self.loop.call_later(self._pause, self._ask)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _terminate(self, pids: Sequence[int]) -> None:
        if not self._terminated:
            self.tell("terminated", pids, self._kill_at - self.loop.time())
        for pid in {each for child in pids for each in tree(child)} - self._terminated:
            self._terminated.add(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # a stopped one cannot obey

    def _ask(self) -> None:
        self.keeper.ask_left(LEFTOVERS)
        self.keeper.flush()


def describe(stage: Stage, names: Sequence[str], seconds: float) -> str:
    """Describe a stage in a sentence for people."""
    who = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    if stage == "left":
        return (
            f"the workers have ended, and left processes running: {who}. They have {seconds:.0f} s "
            f"(--shutdown-timeout) to end before they get SIGTERM; Ctrl-C ends them now. A script "
            f"that waits for what it has started gives it all the time it takes"
        )
    if stage == "terminated":
        return f"SIGTERM to what workers left running, and SIGKILL {seconds:.0f} s later: {who}"
    return f"SIGKILL to what workers left running: {who}"
