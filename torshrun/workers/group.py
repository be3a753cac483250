"""The node's workers of one round: started, watched and stopped as one unit."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torsh_runtime.transitions import Machine
from torshrun.debugger import followed
from torshrun.procfs import handles, holds_back, read_text, start_time
from torshrun.workers import keeper as reports
from torshrun.workers.leftovers import Leftovers, Stage
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.orphans import Orphans
from torshrun.workers.processes import named
from torshrun.workers.spec import Assignment
from torshrun.workers.worker import Listener, Worker

if TYPE_CHECKING:
    from torshrun.workers.standbys import Standbys
    from torshrun.workers.zygote import ZygoteServices

STACK_SIGNAL = 62
"""Upon it the Python of a worker leaves its stack: startup/torsh_start.py."""
REACH_BOUND = 1.0
"""Seconds that a scheduler may take from the first of a job's processes to signal them all."""
STACKS_BOUND = 0.2
"""Seconds that stacks are waited for."""
NOTES_BOUND = 0.5
"""Seconds likewise for what runs in their Python itself."""
STACK_BYTES = 1 << 16
"""Bytes of a stack file that are read at most."""
SWEEP_BOUND = 5.0
"""Seconds that processes may take to die of SIGKILL before they count as unkillable."""
ENDING_BOUND = 60.0
"""Seconds that it may take to free the memory of one that is dead already."""
DRAIN_STALL = 1.0
"""Seconds without progress after which a round's end no longer waits for its output."""


@dataclass(eq=False)
class WorkerGroup:
    """Runs one round of workers at a time, in the loop's thread. A round ends with on_stopped(),
    which comes only after stop(), or at any time with on_keeper_lost().
    """

    keeper: reports.Keeper
    pump: LogPump
    loop: asyncio.AbstractEventLoop
    listener: Listener
    inherited: tuple[int, ...]
    """Descriptors that each worker gets behind its standard streams."""

    def __post_init__(self) -> None:
        self._ids = itertools.count()
        self._present: dict[int, Worker] = {}
        self._pending: list[tuple[Worker, list[int]]] = []  # wait for a standby; and their streams
        self.standbys: Standbys | None = None
        self._num_starting = 0
        self._kill_timer: asyncio.TimerHandle | None = None
        self._leftovers: Leftovers | None = None
        self._orphans = Orphans(self.keeper, self.loop)
        self._closed = False
        self._seen = Machine("workers", "none")
        self.begin()
        self.loop.add_reader(self.keeper.fileno(), self._receive)

    def begin(self) -> None:
        """Begin a round, without any worker yet. The one before must be over."""
        self.begun = time.monotonic()
        """When the round began, on the monotonic clock."""
        self.workers: list[Worker] = []
        """All of the round, by local rank."""
        self.endings: list[Worker] = []
        """Those that run no more, in the order in which they ended."""
        self._ahead: dict[int, Worker] = {}  # those of the next round, by local rank
        self._stopping = self._sweeping = self._told = False

    def start(self, assignments: Sequence[Assignment]) -> None:
        """Start workers in this round. After an OSError some may be alive: stop() has to follow."""
        self._num_starting = len(assignments)
        first = assignments[0].worker
        self._seen.become("starting", f"{len(assignments)} workers", round=first.round)
        for assignment in assignments:
            worker, ends = self._open(assignment)
            self.workers.append(worker)
            self._spawn(worker, ends)
        self._settle()

    def start_ahead(self, assignments: Sequence[Assignment]) -> None:
        """Start processes in the place of workers that run no more, for replace() to take.

        Until then they do not count as workers. The end of one has no effect, and it gets no notice
        of notify(), but it is stopped with all others.
        """
        for assignment in assignments:
            place = assignment.worker
            self._orphans.end_those_of(self.workers[place.local_rank], place.round)
            worker, ends = self._open(assignment)
            self._ahead[place.local_rank] = worker
            self._spawn(worker, ends)
        self._settle()

    def adopt_ahead(self, assignment: Assignment, pid: int) -> None:
        """Do as start_ahead(), with a child of the keeper that is the copy of a dead worker."""
        place = assignment.worker
        before = self.workers[place.local_rank]
        self._orphans.end_those_of(before, place.round, pid)
        worker, worker_id = Worker(assignment, before.streams), next(self._ids)
        self._ahead[place.local_rank] = self._present[worker_id] = worker
        self.keeper.own(worker_id, pid, pid)
        self.keeper.take(worker_id)
        self._flush()

    def replace(self, assignments: Sequence[Assignment]) -> None:
        """Begin the next round with those that were started ahead, and these, which were not."""
        self.begun, self.endings = time.monotonic(), []
        self.start_ahead(assignments)
        for local_rank, worker in self._ahead.items():
            self.workers[local_rank] = worker
        self._become("starting", f"{len(self._ahead)} replacements")
        self._ahead = {}
        self._told, self._num_starting = False, sum(not each.pid for each in self.workers)
        self._tell_started()

    def move(self, assignments: Sequence[Assignment]) -> None:
        """Give the workers the ranks that these would have, which are others than they had."""
        for worker in (*self.workers, *self._ahead.values()):
            if worker.alive:  # reports name one that was lost by the rank that it had
                worker.move(assignments[worker.local_rank].worker)

    def kill(self, local_ranks: Collection[int]) -> None:
        """Kill these workers with SIGKILL."""
        for worker_id, worker in self._present.items():
            if worker.local_rank in local_ranks and worker.alive:
                self.keeper.signal(worker_id, signal.SIGKILL)
        self._flush()

    def prepare(
        self, make: Callable[[ZygoteServices], Standbys], complain: Callable[[str], None]
    ) -> None:
        """Have standbys be workers where they can. Raises OSError."""
        from torshrun.workers.zygote import ZygoteServices

        around = ZygoteServices(
            loop=self.loop,
            keeper=self.keeper,
            pump=self.pump,
            new_id=self._ids.__next__,
            inherited=self.inherited,
            on_change=self._settle,
            complain=complain,
        )
        self.standbys = make(around)
        self.standbys.start()
        self._flush()

    def stop(self, signo: int, grace: float) -> None:
        """Signal all workers, and `grace` seconds later kill what is left of them and of their
        descendants; at once if grace is 0. Calling it again moves the deadline forward.
        """
        self._stopping = True
        self._become("stopping", f"signal {signo}, {grace:g} s of grace")
        if self.standbys:
            self.standbys.pause()
        for worker, ends in self._pending:
            worker.alive = False  # it never was
            _close_all(ends)
        self._pending = []
        if not self._present or grace <= 0:
            self._sweep()
        elif not self._sweeping and self._kill_timer is None:
            self.keeper.signal(reports.ALL, signo)
            self.keeper.signal(reports.ALL, signal.SIGCONT)  # a stopped one cannot obey
            self._flush()
            self._kill_timer = self.loop.call_later(grace, self._sweep)

    async def have_got(self, signo: int) -> bool:
        """Return whether a scheduler that signals all processes of the job sends this signal.

        In that case the keeper gets it as well. It blocks all signals, and nobody else sends it
        one.
        """
        deadline = self.loop.time() + REACH_BOUND
        while not holds_back(self.keeper.pid, signo):
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(REACH_BOUND / 100)
        return True

    def finish(self, signo: int, grace: float) -> None:
        """End a round whose workers have all ended well.

        What they left running may end without a signal for `grace` seconds. Then it gets SIGTERM,
        or at once if `signo` is SIGTERM. With SIGKILL it is killed at once.
        """
        if self.standbys:
            self.standbys.pause()
        self._stopping = True
        self._become("finishing", "all workers have succeeded")
        if signo == signal.SIGKILL:
            self._sweep()
        elif self._leftovers is None and not self._sweeping:
            tell = self._tell_leftovers
            self._leftovers = Leftovers(self.keeper, self.loop, grace, tell, self._sweep)
        if self._leftovers and signo == signal.SIGTERM:
            self._leftovers.terminate()

    def _tell_leftovers(self, stage: Stage, pids: Sequence[int], seconds: float) -> None:
        self.listener.on_leftovers(stage, named(pids), seconds)

    def send(self, signo: int) -> None:
        """Send a signal to all workers and to what they have started."""
        if not self._closed:
            self.keeper.signal(reports.ALL, signo)
            self._flush()

    def notify(
        self, signo: int, *, handled_only: bool = False, local_rank: int | None = None
    ) -> None:
        """Send a signal to all workers, or only to those that handle it, or to one of these.

        What they have started does not get it: most of these processes would die of it.
        """
        if self._closed:
            return
        able = [
            number
            for number, each in self._present.items()
            if local_rank in (None, each.local_rank)
            and not self._is_ahead(each)
            and handles(each.pid, signo)
        ]
        everybody = [reports.ALL]
        if self._ahead:  # it would be their end, as nobody handles a signal from the start on
            everybody = [n for n, each in self._present.items() if not self._is_ahead(each)]
        for worker_id in able if handled_only else everybody:
            self.keeper.signal(worker_id, signo, alone=True)
        self._flush()

    async def leave_stacks(self) -> None:
        """Have workers leave their stacks that can, whatever they do when they are asked to stop,
        and wait for them: of two requests at a time faulthandler heeds one, and the other ends it.
        To any other process the signal would be the end.
        """
        workers = [each for each in self._present.items() if not self._is_ahead(each[1])]
        asked = [each for each in workers if _can_leave_stack(each[1])]
        for number, _ in asked:
            self.keeper.signal(number, STACK_SIGNAL, alone=True)
        self._flush()
        deadline, seen = self.loop.time() + STACKS_BOUND, [0] * len(asked)
        while asked and self.loop.time() < deadline:
            await asyncio.sleep(STACKS_BOUND / 20)
            sizes = [_stack_size(each) for _, each in asked]
            if all(sizes) and sizes == seen:
                break
            seen = sizes
        await self._wait_for_notes([each for _, each in asked])

    async def _wait_for_notes(self, asked: Sequence[Worker]) -> None:
        """Wait until the workers have noted which exceptions were on their way.

        Only workers that run Python note them; those that wait in a collective do not.
        """
        able = [worker for worker in asked if worker.alive and _runs_python(worker)]
        deadline = self.loop.time() + NOTES_BOUND
        while able and self.loop.time() < deadline:
            await asyncio.sleep(STACKS_BOUND / 20)
            able = [worker for worker in able if not _has_noted(worker)]

    async def drain(self) -> None:
        """Let the output of a round that is over catch up, but not for ever."""
        streams = [stream for worker in self.workers for stream in worker.streams]
        await self.pump.finish(partial(self.pump.drain, streams), lambda: DRAIN_STALL)

    def alive(self) -> tuple[int, ...]:
        """Return the ranks of the workers that have not ended."""
        pending = (worker for worker, _ in self._pending)
        started = (worker for worker in self._present.values() if worker.alive)
        both = (*started, *pending)
        return tuple(worker.rank for worker in both if not self._is_ahead(worker))

    @property
    def ahead(self) -> frozenset[int]:
        """Return the local ranks of those that start_ahead() has started, and that still run."""
        return frozenset(self._ahead)

    def _is_ahead(self, worker: Worker) -> bool:
        return worker in self._ahead.values()

    def close(self) -> None:
        """Stop listening to the keeper, and sending to it."""
        self._closed = True
        self.loop.remove_reader(self.keeper.fileno())
        self.loop.remove_writer(self.keeper.fileno())
        self._cancel_timer()
        self._forget_leftovers()
        self._orphans.stop()
        if self.standbys:
            self.standbys.close()

    def _become(self, state: str, why: str = "") -> None:
        round_number = self.workers[0].assignment.worker.round if self.workers else "none"
        self._seen.become(state, why, round=round_number)

    def _open(self, assignment: Assignment) -> tuple[Worker, list[int]]:
        """Return a worker that is to be started, and the ends of its streams."""
        streams = self.pump.open(assignment.worker, assignment.folder)
        return Worker(assignment, streams), [streams[0].source.end, streams[-1].source.end]

    def _spawn(self, worker: Worker, ends: list[int]) -> None:
        if not self._begin(worker, ends):
            self._pending.append((worker, ends))

    def _begin(self, worker: Worker, ends: list[int]) -> bool:
        """Have a standby be this worker, or start a process, unless a standby is to come."""
        assignment, fds = worker.assignment, (0, *ends, *self.inherited)
        environ = assignment.environ
        if self.standbys:
            environ = {**environ, **self.standbys.variables(assignment.worker)}
            if parked := self.standbys.take(assignment, environ, fds):
                self._present[parked.worker_id] = worker
                worker.started = time.monotonic()
                self._note_started(worker, parked.pid)
                _close_all(ends)
                return True
            if self.standbys.expects(assignment):
                return False
        worker_id = next(self._ids)
        try:
            argv = followed(assignment.argv)
            self.keeper.spawn(
                worker_id, argv, environ, "", fds, assignment.cpus,
                shares_session=assignment.shares_session,
            )  # fmt: skip
        finally:
            _close_all(ends)
        self._present[worker_id] = worker
        worker.started = time.monotonic()
        return True

    def _settle(self) -> None:
        """Begin those that were waiting for a standby and need not any more."""
        self._pending = [each for each in self._pending if not self._begin(*each)]
        if self.standbys and not self._closed and not self._stopping:
            self.standbys.want([worker.assignment for worker, _ in self._pending])
        self._flush()
        self._tell_started()

    def _note_started(self, worker: Worker, pid: int) -> None:
        worker.pid, worker.start_time = pid, start_time(pid)
        if not self._is_ahead(worker):
            self._num_starting -= 1

    def _tell_started(self) -> None:
        if self.workers and not self._num_starting and not self._stopping and not self._told:
            self._told = True
            self._become("running")
            self.listener.on_started()

    def _flush(self) -> None:
        if self.keeper.flush():
            self.loop.remove_writer(self.keeper.fileno())
        else:
            self.loop.add_writer(self.keeper.fileno(), self._flush)

    def _receive(self) -> None:
        for report in self.keeper.receive():
            if self.standbys and self.standbys.on_report(report):
                self._flush()
            elif isinstance(report, reports.Spawned):
                self._note_started(self._present[report.worker_id], report.pid)
                self._tell_started()
            elif isinstance(report, reports.Ending):
                self._end(self._present[report.worker_id], report.status)
            elif isinstance(report, reports.SpawnFailed | reports.Exited):
                self._on_gone(report)
            elif isinstance(report, reports.Swept):
                self._cancel_timer()
                self._become("over", ", ".join(report.unkillable))
                self.listener.on_stopped(report.unkillable)
            elif isinstance(report, reports.Left):
                self._on_left(report)
            elif isinstance(report, reports.DeadManFired):
                self.listener.on_dead_man()
            else:
                self.close()
                self.listener.on_keeper_lost()

    def _on_left(self, report: reports.Left) -> None:
        if report.tag == reports.PING:
            self.listener.on_keeper_answer()
        elif report.tag == reports.ORPHANS:
            self._orphans.take(report.pids)
        elif self._leftovers:
            self._leftovers.take(report.pids)

    def _on_gone(self, report: reports.SpawnFailed | reports.Exited) -> None:
        worker = self._present.pop(report.worker_id)
        if isinstance(report, reports.SpawnFailed):
            worker.alive = False
            if not self._forget_ahead(worker):  # replace() tries again, and says so
                self.listener.on_not_started(worker, report)
        else:
            if worker.alive:
                self._end(worker, report.status)
            worker.status, worker.peak_rss_kib = report.status, report.peak_rss_kib
            self.listener.on_exit(worker)
            self._orphans.look()
        if self._stopping and not self._present:
            self._sweep()

    def _end(self, worker: Worker, status: int) -> None:
        worker.alive = False
        worker.status = status
        worker.seconds = time.monotonic() - worker.started
        worker.stopped = self._stopping
        if not self._forget_ahead(worker):
            self.endings.append(worker)
            self.listener.on_end(worker)

    def _forget_ahead(self, worker: Worker) -> bool:
        """Forget a worker of the next round; return False if it is none."""
        is_ahead = self._is_ahead(worker)
        if is_ahead:
            if worker.pid and not self._stopping:
                self._orphans.end_those_of(worker, worker.assignment.worker.round)
            del self._ahead[worker.assignment.worker.local_rank]
        return is_ahead

    def _sweep(self) -> None:
        self._cancel_timer()
        self._forget_leftovers()
        self._orphans.stop()
        if not self._sweeping:
            self._sweeping = True
            self._become("sweeping", f"{len(self.alive())} workers run")
            if self.alive():
                self.listener.on_killed()
            are_ending = any(not worker.alive for worker in self._present.values())
            bound = ENDING_BOUND if are_ending else SWEEP_BOUND
            self.keeper.sweep(0, bound)
            self._flush()
            # Without one that does not answer the agent can go on to the end.
            give_up = partial(self.keeper.give_up, f"did not end the workers in {bound + 2:g} s")
            self._kill_timer = self.loop.call_later(bound + 2, give_up)

    def _forget_leftovers(self) -> None:
        if self._leftovers is not None:
            self._leftovers.stop()
            self._leftovers = None

    def _cancel_timer(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer = None


def _can_leave_stack(worker: Worker) -> bool:
    path = worker.assignment.worker.stack_file
    return bool(path) and os.path.lexists(path) and handles(worker.pid, STACK_SIGNAL)


def _stack_size(worker: Worker) -> int:
    """Return how many bytes of its stack a worker has written; 1 if it will write no more."""
    try:
        return os.lstat(worker.assignment.worker.stack_file).st_size if worker.alive else 1
    except OSError:
        return 1


def _runs_python(worker: Worker) -> bool:
    """Return whether the worker may be outside of any collective, judging by its stack."""
    from torshrun.failure.blocked_at import from_stack

    found = from_stack(read_text(worker.assignment.worker.stack_file, STACK_BYTES))
    return found is None or not found.call


def _has_noted(worker: Worker) -> bool:
    from torshrun.failure.ending import SUFFIX

    return not worker.alive or os.path.lexists(worker.assignment.worker.stack_file + SUFFIX)


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in set(descriptors):
        os.close(descriptor)
