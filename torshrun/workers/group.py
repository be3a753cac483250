"""The node's workers of one round: started, watched and stopped as one unit."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torshrun.workers import keeper as reports
from torshrun.workers.events import (
    DeadManFired,
    GroupStarted,
    GroupStopped,
    KeeperLost,
    SpawnFailed,
    WorkerEvent,
    WorkerExited,
    WorkersKilled,
)
from torshrun.workers.logs.pump import LogPump, Outlets
from torshrun.workers.logs.stream import Stream, Tail
from torshrun.workers.spec import Assignment

if TYPE_CHECKING:
    import asyncio

SWEEP_BOUND = 5.0
"""Seconds that processes may take to die of SIGKILL before they count as unkillable."""
DRAIN_STALL = 1.0
"""Seconds without progress after which a round's end no longer waits for its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one worker ended."""

    assignment: Assignment
    pid: int
    status: int
    """As waitpid gives it."""
    seconds: float
    """How long it ran."""
    stopped: bool
    """Whether it ended after it had been asked to stop."""
    tail: Tail
    """The end of its stderr, of which some may still be on its way."""
    peak_rss_kib: int
    """The most memory that it had resident."""


class _Member:
    """A worker while it lives."""

    def __init__(self, assignment: Assignment, outlets: Outlets) -> None:
        self.assignment = assignment
        self.outlets = outlets
        self.pid = 0
        self.started = time.monotonic()


class WorkerState(NamedTuple):
    """A worker at the moment."""

    rank: int
    local_rank: int
    pid: int
    """0 while it is being started."""
    output: int
    """Bytes that have come from its stdout and stderr."""
    alive: bool
    """Whether it has not ended."""


class WorkerGroup:
    """Runs one round of workers at a time. All methods belong to the loop's thread.

    Events go to `on_event`, in order. A round ends with GroupStopped, which comes only after
    stop(), or at any time with KeeperLost.
    """

    def __init__(
        self,
        keeper: reports.Keeper,
        pump: LogPump,
        loop: asyncio.AbstractEventLoop,
        on_event: Callable[[WorkerEvent], None],
    ) -> None:
        self._keeper = keeper
        self._pump = pump
        self._loop = loop
        self._on_event = on_event
        self._round = 0
        self._next_id = 0
        self._alive: dict[int, _Member] = {}
        self._members: list[_Member] = []  # all of the round, by local rank
        self._num_starting = 0
        self.begun = time.monotonic()
        """When the round began, on the monotonic clock."""
        self._streams: list[Stream] = []
        self._endings: list[Ending] = []
        self._kill_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._sweeping = False
        self._closed = False
        loop.add_reader(keeper.fileno(), self._receive)

    def begin(self, round_number: int) -> None:
        """Begin a round, without any worker yet. The one before must be over."""
        self._round = round_number
        self.begun = time.monotonic()
        self._stopping = self._sweeping = False
        self._streams, self._endings, self._members = [], [], []

    def start(self, assignments: Sequence[Assignment]) -> None:
        """Start workers in this round. OSError when a directory or file cannot be made; those
        that were started before that are alive, so stop() has to follow.
        """
        self._num_starting = len(assignments)
        for assignment in assignments:
            self._spawn(assignment)
        self._flush()

    def stop(self, signo: int, grace: float) -> None:
        """Signal all workers, and `grace` seconds later kill what is left of them and of their
        descendants; at once if grace is 0. Calling it again moves the deadline forward.
        """
        self._stopping = True
        if not self._alive or grace <= 0:
            self._sweep()
        elif not self._sweeping and self._kill_timer is None:
            self._keeper.signal(reports.ALL, signo)
            self._keeper.signal(reports.ALL, signal.SIGCONT)  # a stopped one cannot obey
            self._flush()
            self._kill_timer = self._loop.call_later(grace, self._sweep)

    def send(self, signo: int) -> None:
        """Send a signal to all workers and what they have in their process groups."""
        if not self._closed:
            self._keeper.signal(reports.ALL, signo)
            self._flush()

    def notify(self, signo: int) -> None:
        """Send a signal to all workers alone: it would kill those they have started, which in most
        cases know nothing of it.
        """
        if not self._closed:
            self._keeper.notify(reports.ALL, signo)
            self._flush()

    def workers(self) -> tuple[WorkerState, ...]:
        """The workers of this round at the moment, by local rank."""
        alive = {id(member) for member in self._alive.values()}
        return tuple(_state(member, id(member) in alive) for member in self._members)

    def alive(self) -> tuple[int, ...]:
        """Ranks of the workers that have not ended."""
        return tuple(sorted(member.assignment.worker.rank for member in self._alive.values()))

    def endings(self) -> tuple[Ending, ...]:
        """How the workers of this round ended, in the order in which they did."""
        return tuple(self._endings)

    def close(self) -> None:
        """Stop listening to the keeper, and sending to it."""
        self._closed = True
        self._loop.remove_reader(self._keeper.fileno())
        self._loop.remove_writer(self._keeper.fileno())
        self._cancel_timer()

    def _spawn(self, assignment: Assignment) -> None:
        outlets = self._pump.open(assignment.worker, assignment.folder)
        self._streams += outlets.streams
        try:
            self._keeper.spawn(
                self._next_id,
                assignment.argv,
                assignment.environ,
                "",
                (0, *outlets.ends),
                assignment.cpus,
            )
        finally:
            outlets.close_ends()
        self._alive[self._next_id] = _Member(assignment, outlets)
        self._members.append(self._alive[self._next_id])
        self._next_id += 1

    def _flush(self) -> None:
        if self._keeper.flush():
            self._loop.remove_writer(self._keeper.fileno())
        else:
            self._loop.add_writer(self._keeper.fileno(), self._flush)

    def _receive(self) -> None:
        for report in self._keeper.receive():
            self._handle(report)

    def _handle(self, report: reports.Report) -> None:
        if isinstance(report, reports.Spawned):
            self._on_spawned(self._alive[report.worker_id], report.pid)
        elif isinstance(report, reports.SpawnFailed):
            self._on_spawn_failed(report)
        elif isinstance(report, reports.Exited):
            self._on_exited(report)
        elif isinstance(report, reports.Swept):
            self._on_swept(report)
        elif isinstance(report, reports.DeadManFired):
            self._on_event(DeadManFired(self._round))
        else:
            self.close()
            self._on_event(KeeperLost(self._round))

    def _on_spawned(self, member: _Member, pid: int) -> None:
        member.pid = pid
        self._num_starting -= 1
        if not self._num_starting and not self._stopping:
            self._on_event(GroupStarted(self._round))

    def _on_spawn_failed(self, report: reports.SpawnFailed) -> None:
        member = self._alive.pop(report.worker_id)
        worker = member.assignment
        reason = (
            f"rank {worker.worker.rank}: cannot start {worker.argv[0]}: "
            f"{os.strerror(report.errno)} ({report.stage})"
        )
        self._on_event(SpawnFailed(self._round, worker.worker.rank, report.errno, reason))
        self._sweep_if_empty()

    def _on_exited(self, report: reports.Exited) -> None:
        member = self._alive.pop(report.worker_id)
        ending = Ending(
            assignment=member.assignment,
            pid=member.pid,
            status=report.status,
            seconds=time.monotonic() - member.started,
            stopped=self._stopping,
            tail=member.outlets.tail,
            peak_rss_kib=report.peak_rss_kib,
        )
        self._endings.append(ending)
        rank = member.assignment.worker.rank
        self._on_event(WorkerExited(self._round, rank, report.status))
        self._sweep_if_empty()

    def _sweep_if_empty(self) -> None:
        if self._stopping and not self._alive:
            self._sweep()

    def _sweep(self) -> None:
        self._cancel_timer()
        if not self._sweeping:
            self._sweeping = True
            if self._alive:
                self._on_event(WorkersKilled(self._round, self.alive()))
            self._keeper.sweep(self._round, SWEEP_BOUND)
            self._flush()
            self._kill_timer = self._loop.call_later(SWEEP_BOUND + 2, self._give_up_keeper)

    def _give_up_keeper(self) -> None:
        """It does not answer (somebody stopped it): without it the agent can go on to the end."""
        self._kill_timer = None
        os.kill(self._keeper.pid, signal.SIGKILL)

    def _cancel_timer(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer = None

    def _on_swept(self, report: reports.Swept) -> None:
        """Let the output catch up, but not for ever, before the round is over."""
        self._cancel_timer()
        over = GroupStopped(report.tag, report.unkillable)
        drained = self._loop.create_future()
        self._pump.drain(self._streams, lambda: self._from_pump(drained))
        drained.add_done_callback(lambda _: self._on_event(over))
        self._give_up_when_stalled(drained, -1)

    def _from_pump(self, drained: asyncio.Future[None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self._loop.call_soon_threadsafe(_resolve, drained)

    def _give_up_when_stalled(self, drained: asyncio.Future[None], moved: int) -> None:
        if self._pump.moved == moved:
            _resolve(drained)
        elif not drained.done():
            self._loop.call_later(
                DRAIN_STALL, self._give_up_when_stalled, drained, self._pump.moved
            )


def _state(member: _Member, alive: bool) -> WorkerState:
    place = member.assignment.worker
    output = sum(stream.received for stream in member.outlets.streams)
    return WorkerState(place.rank, place.local_rank, member.pid, output, alive)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
