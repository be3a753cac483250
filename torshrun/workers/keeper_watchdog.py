"""Watches over the keeper: it has to answer while this process runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torshrun.procfs import read_stat
from torshrun.workers.keeper import PING, Keeper

INTERVAL = 1.0
"""Seconds between two questions."""
LONGEST_TICK = 2.0
"""Seconds that count at most between two ticks: this process may have been stopped as well."""


@dataclass(eq=False)
class KeeperWatchdog:
    """Asks the keeper again and again, resumes one that is stopped, and kills one that gives no
    answer for `limit` seconds: the workers end with it, and the agent learns that it is lost.
    """

    keeper: Keeper
    limit: float
    """0 is never."""
    say: Callable[[str], None]
    _silent: float = 0.0
    _waiting: bool = False
    _told: bool = False

    def __post_init__(self) -> None:
        self._asked = self._ticked = time.monotonic()

    def tick(self) -> None:
        """Ask the keeper or count its silence; to be called at least once a second."""
        now = time.monotonic()
        passed, self._ticked = min(now - self._ticked, LONGEST_TICK), now
        if self._waiting:
            self._silent += passed
            self._treat()
        elif now - self._asked >= INTERVAL:
            self._asked, self._silent, self._waiting = now, 0.0, True
            self.keeper.ask_left(PING)

    def answered(self) -> None:
        self._waiting = False

    def _treat(self) -> None:
        stat = read_stat(self.keeper.pid)
        state = stat.state if stat else "?"
        if state == "T":
            if not self._told:
                self._told = True
                self.say(
                    f"the keeper (torsh-keeper, pid {self.keeper.pid}) was stopped, as by SIGSTOP: "
                    f"it is resumed, for it sees how workers end"
                )
            with suppress(ProcessLookupError):
                os.kill(self.keeper.pid, signal.SIGCONT)
        if 0 < self.limit <= self._silent:
            self.keeper.give_up(f"gave no answer for {self._silent:.0f} s (state {state})")
