"""Holds what is known of a worker, and who listens to a round's workers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from torsh_runtime.contract import PLACE, WorkerEnv
from torshrun.workers import keeper as reports
from torshrun.workers.leftovers import Stage
from torshrun.workers.logs.stream import Stream
from torshrun.workers.spec import Assignment

if TYPE_CHECKING:
    pass


@dataclass(slots=True, eq=False)
class Worker:
    """Holds what is known of a worker, from its start on."""

    assignment: Assignment
    streams: tuple[Stream, ...]
    """Streams of its stdout and stderr; a single one where both are read together."""
    started: float = field(default_factory=time.monotonic)
    pid: int = 0
    """0 while it is being started."""
    start_time: int | None = None
    """Start of its process, in ticks since the machine's; None if that is not known."""
    alive: bool = True
    """True while it runs its program or is being started."""
    status: int = 0
    """Exit status, in the format of waitpid."""
    seconds: float = 0.0
    stopped: bool = False
    """True if it ended after it had been asked to stop."""
    peak_rss_kib: int = 0

    @property
    def rank(self) -> int:
        return self.assignment.worker.rank

    @property
    def local_rank(self) -> int:
        return self.assignment.worker.local_rank

    def move(self, to: WorkerEnv) -> None:
        """Take the ranks of this place, in the round in which the process began."""
        own = self.assignment.worker
        moved = {name: getattr(to, name) for name in PLACE}
        worker = replace(own, **{**moved, "round": own.round})
        self.assignment = replace(self.assignment, worker=worker)

    @property
    def was_killed(self) -> bool:
        """Return whether it was ended by a signal."""
        return os.WIFSIGNALED(self.status)

    @property
    def output(self) -> int:
        """Return how many bytes have been read from its stdout and stderr."""
        return sum(stream.received for stream in self.streams)


class Listener(Protocol):
    """Receives, in order, the events of a round's workers."""

    def on_started(self) -> None:
        """Handle that the programs of all workers run."""

    def on_not_started(self, worker: Worker, report: reports.SpawnFailed) -> None:
        """Handle that a worker's program could not be started, and that a retry will not help."""

    def on_end(self, worker: Worker) -> None:
        """Handle that a worker no longer runs. Its process may take a while to end after that."""

    def on_exit(self, worker: Worker) -> None:
        """Handle that a worker's process has ended, and that all facts about it are known."""

    def on_killed(self) -> None:
        """Handle the end of the grace period: workers that still run are killed."""

    def on_leftovers(self, stage: Stage, names: Sequence[str], seconds: float) -> None:
        """Handle that all workers have ended well, but left the processes called `names` running.

        They remain at this stage for `seconds`.
        """

    def on_stopped(self, unkillable: tuple[str, ...]) -> None:
        """Handle that no process of the round is left, except those that survived SIGKILL.

        `unkillable` describes these for people. Some output may still be on its way: see drain().
        """

    def on_dead_man(self) -> None:
        """Handle that the keeper killed all workers: the agent did not renew its lease in time."""

    def on_keeper_answer(self) -> None:
        """Handle the keeper's answer to KeeperWatchdog's question."""

    def on_keeper_lost(self) -> None:
        """Handle that the keeper is gone, and its workers with it. No more calls follow."""
