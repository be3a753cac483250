"""Ends what workers had started that are replaced while the others go on."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torshrun.procfs import read_text, start_time, tree
from torshrun.workers.keeper import ORPHANS, Keeper
from torshrun.workers.processes import kill
from torshrun.workers.worker import Worker

PAUSE = 0.02
"""Seconds until the next look, as long as some were found: their children are orphans, too."""


class Dead(NamedTuple):
    """Holds what is known of a worker that is dead."""

    start_time: int | None
    """Start of its process: another one of a later time may have the same pid."""
    rank: int
    rounds: range
    """The rounds in which it ran."""


@dataclass(eq=False)
class Orphans:
    """Kills the descendants of workers that are dead, in the loop's thread.

    They are children of the keeper by then, as are those of other workers whose parents have ended.
    Which are whose is known by their process group or session, or by their environment. A worker
    is forgotten once it is reaped and has none left, as then its pid may be given to others.
    """

    keeper: Keeper
    loop: asyncio.AbstractEventLoop
    _dead: dict[int, Dead] = field(default_factory=dict)
    """The dead workers by pid."""
    _reaped: deque[list[int]] = field(default_factory=deque)
    """Pids of those that were reaped before each question to the keeper that is not answered."""
    _spared: set[int] = field(default_factory=set)
    """Pids of processes that are workers themselves, of which a dead one was the parent."""
    _next: asyncio.TimerHandle | None = None

    def end_those_of(self, worker: Worker, until: int, spared: int = 0) -> None:
        """Kill the descendants of a worker that is replaced in round `until`, but for `spared`."""
        self._spared.add(spared)
        place = worker.assignment.worker
        self._dead[worker.pid] = Dead(worker.start_time, place.rank, range(place.round, until))
        self.look()

    def look(self) -> None:
        """Ask the keeper for orphans, if those of a worker are to be killed."""
        if self._dead:
            self._reaped.append([pid for pid in self._dead if not self._is_itself(pid)])
            self.keeper.ask_left(ORPHANS)
            self.keeper.flush()

    def take(self, pids: Sequence[int]) -> None:
        """Handle the keeper's answer, which is that its children are `pids`."""
        found = [pid for pid in pids if self._is_of_dead(pid)]
        reaped = self._reaped.popleft()
        for pid in () if found else reaped:
            self._dead.pop(pid, None)
        for pid in {each for orphan in found for each in tree(orphan)}:
            kill(pid)
        if found and self._next is None:
            self._next = self.loop.call_later(PAUSE, self._look_again)

    def stop(self) -> None:
        """Forget all workers: what is left is killed with all others."""
        self._dead.clear()
        self._spared.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look_again(self) -> None:
        self._next = None
        self.look()

    def _is_itself(self, pid: int) -> bool:
        """Return whether the process is a dead worker, which is about to be reaped."""
        dead = self._dead.get(pid)
        return dead is not None and start_time(pid) == dead.start_time is not None

    def _is_of_dead(self, pid: int) -> bool:
        if self._is_itself(pid) or pid in self._spared:
            return False
        try:
            leaders = {os.getpgid(pid), os.getsid(pid)} & self._dead.keys()
        except ProcessLookupError:
            return False
        if any(start_time(each) in (self._dead[each].start_time, None) for each in leaders):
            return True
        environ = dict(
            each.partition("=")[::2] for each in read_text(f"/proc/{pid}/environ").split("\0")
        )
        rank, number = environ.get("RANK", ""), environ.get("TORSH_ROUND", "")
        return any(
            rank == str(dead.rank) and number in map(str, dead.rounds)
            for dead in self._dead.values()
        )
