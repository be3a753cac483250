"""Ends what workers had started that are replaced while the others go on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from torshrun.procfs import read_text, tree
from torshrun.workers.keeper import ORPHANS, Keeper
from torshrun.workers.processes import kill
from torshrun.workers.worker import Worker

PAUSE = 0.02
"""Seconds until the next look, as long as some were found: their children are orphans, too."""


@dataclass(eq=False)
class Orphans:
    """Kills the descendants of workers that are dead, in the loop's thread.

    They are children of the keeper by then, as are those of other workers whose parents have ended.
    Which are whose is known by their process group or session, or by their environment.
    """

    keeper: Keeper
    loop: asyncio.AbstractEventLoop
    _dead: dict[int, tuple[int, range]] = field(default_factory=dict)
    """The rank of each dead worker by its pid, and the rounds in which it ran."""
    _next: asyncio.TimerHandle | None = None

    def end_those_of(self, worker: Worker, until: int) -> None:
        """Kill the descendants of a worker that is replaced in round `until`."""
        place = worker.assignment.worker
        self._dead[worker.pid] = place.rank, range(place.round, until)
        self.look()

    def look(self) -> None:
        """Ask the keeper for orphans, if those of a worker are to be killed."""
        if self._dead:
            self.keeper.ask_left(ORPHANS)
            self.keeper.flush()

    def take(self, pids: Sequence[int]) -> None:
        """Handle the keeper's answer, which is that its children are `pids`."""
        found = [pid for pid in pids if self._is_of_dead(pid)]
        for pid in {each for orphan in found for each in tree(orphan)}:
            kill(pid)
        if found and self._next is None:
            self._next = self.loop.call_later(PAUSE, self._look_again)

    def stop(self) -> None:
        """Forget all workers: what is left is killed with all others."""
        self._dead.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look_again(self) -> None:
        self._next = None
        self.look()

    def _is_of_dead(self, pid: int) -> bool:
        if pid in self._dead:  # itself, which is about to be reaped
            return False
        try:
            if {os.getpgid(pid), os.getsid(pid)} & self._dead.keys():
                return True
        except ProcessLookupError:
            return False
        environ = dict(
            each.partition("=")[::2] for each in read_text(f"/proc/{pid}/environ").split("\0")
        )
        rank, number = environ.get("RANK", ""), environ.get("TORSH_ROUND", "")
        return any(
            rank == str(dead) and number in map(str, rounds) for dead, rounds in self._dead.values()
        )
