"""The agent: the only loop. Feeds events to the machine and carries out its instructions."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torsh_runtime.errors import TorshError
from torsh_runtime.transitions import Machine
from torshrun import exit_codes, own_programs
from torshrun.agent import machine, protocol
from torshrun.agent.announcement_texts import no_copy, unprotected
from torshrun.agent.announcer import Announcer
from torshrun.agent.answering import Answering
from torshrun.agent.corruption import Corruption
from torshrun.agent.diagnosis import Diagnosis, Findings
from torshrun.agent.gpus import make_checks
from torshrun.agent.hang_monitor import HangMonitor
from torshrun.agent.recovery import Recovery
from torshrun.agent.round import Round, ServeStore, first_worker
from torshrun.agent.slowness import Slowness
from torshrun.agent.standstill import Standstill
from torshrun.agent.telemetry import Telemetry
from torshrun.agent.time_limit import TimeLimit
from torshrun.agent.watchdog import Watchdog
from torshrun.config.job import LaunchConfig
from torshrun.rendezvous import base
from torshrun.safe_files import Folder
from torshrun.signals import NOTICES, signal_name
from torshrun.workers.adoption import end_copy, orphaned_copy
from torshrun.workers.commit_memory import CommitMemory
from torshrun.workers.group import WorkerGroup
from torshrun.workers.keeper import Keeper, SpawnFailed
from torshrun.workers.keeper_watchdog import KeeperWatchdog
from torshrun.workers.leftovers import Stage, describe
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.processes import kill_descendants, reap_orphans
from torshrun.workers.refused_start import why_refused
from torshrun.workers.spec import Assignment, WorkerSpec, assign
from torshrun.workers.worker import Worker

if TYPE_CHECKING:
    from torshrun.failure.root_cause import RootCause

KEEPER_BOUND = 5.0
"""Seconds that the keeper, or what it left, may take to go."""
RENDEZVOUS_BOUND = 15.0
"""Seconds that taking leave of the other nodes may take."""
READER_STALL = 30.0
"""Seconds that the last output waits for a reader who does not read; 1 s after a stop request."""
ONE_REQUEST = 0.1
"""Seconds in which stop signals count as one request."""
CULPRIT_SECONDS = 0.8
"""Seconds more to wait for other failures, if nobody has failed first so far."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_BY_OTHERS = ("signal", "closing", "verdict")  # which may be a scheduler's wish


@dataclass(kw_only=True, eq=False)
class Agent:
    """Supervises this node's workers until the job is over here; closes all that it was given."""

    config: LaunchConfig
    spec: WorkerSpec
    keeper: Keeper
    pump: LogPump
    scratch: str
    """Temporary directory, which is the keeper's to remove."""
    folder: Folder | None
    """Directory for the attempts' directories, if any output is kept."""
    rendezvous: base.Rendezvous
    """Says which rounds this node takes part in."""
    serve_store: ServeStore
    commit_memory: CommitMemory

    def __post_init__(self) -> None:
        """Create the parts.

        Raise ConfigError if events or metrics cannot be sent where they should.
        """
        config = self.config
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[protocol.Event] = asyncio.Queue()
        self._post = self._events.put_nowait
        self._group = WorkerGroup(
            self.keeper, self.pump, self._loop, self, self.commit_memory.inherited()
        )
        self._gpus = make_checks(config, self.spec.environ, lambda text: self._tell.say(text))
        self._telemetry = Telemetry(config, self._group, self._gpus.read)
        self._tell = Announcer(config, self.pump.say, self._telemetry.record, self._keep_finding)
        self._watchdog = Watchdog(self._group, config.agent_timeout, self._on_heartbeat)
        self._keeper_watchdog = KeeperWatchdog(self.keeper, config.agent_timeout, self._tell.say)
        clock, tells_others = self.rendezvous.common_clock, not config.is_alone
        self._diagnosis = Diagnosis(config.output, self.folder, tells_others, clock)
        self._found = Findings()
        timers, say = self.spec.timer_file, self._tell.say
        self._hangs = HangMonitor(
            config.hang_timeout, self._group, self._post, timers, self._on_timer, say
        )
        self._standstill = Standstill(self._group)
        self._slowness = Slowness(config, self._group, self.rendezvous, self._tell, self._gpus.read)
        self._answering = Answering(
            self._group,
            self.rendezvous,
            lambda: self._round,
            config.run_id,
            lambda: self._diagnosis.node_rank,
        )
        self._time_limit = TimeLimit(config.time_limit, self._loop)
        corrupted = Corruption(self._tell).take
        self._recovery = Recovery(
            self._loop, self._group, self._post, corrupted, self._on_unprotected
        )
        self._reporting: asyncio.Task[None] | None = None
        self._unprotected: set[str] = set()
        self._adopted: set[int] = set()
        self._unfit = ""
        """Why no lost worker can be replaced here, as found at the last loss."""
        self._round: Round | None = None
        self._place: base.NodeAssignment | None = None
        self._diagnosing: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._last_signal, self._signalled = 0, 0.0
        self._complained_in = -1

    async def run(self) -> int:
        """Run the job; its exit code. No worker is left afterwards."""
        self._listen_to_signals()
        self._loop.set_exception_handler(self._on_internal_error)
        self._tell.job_started(self.folder.path if self.folder else "")
        self._watchdog.renew()
        self._prepare_standbys()
        grace, notice = self.config.shutdown_timeout, self.config.end_notice
        self._time_limit.start(grace, notice, self._on_end_near, self._on_end)
        self.rendezvous.start(self._on_rendezvous)
        state: machine.State = machine.Waiting()
        seen = Machine("agent", "waiting")
        while not isinstance(state, machine.Finished):
            self._telemetry.follow(state)
            event = await self._events.get()
            if isinstance(event, protocol.Diagnosed):
                cause = state.cause if isinstance(state, machine.Stopping) else "failure"
                self._tell.round_ended(cause, event)
            if isinstance(event, base.RoundClosing | base.JobOver):
                self._tell.decided(event)
            if isinstance(event, base.RoundOver):
                self._tell.round_over(event)
            if isinstance(event, protocol.KeeperLost):
                self._tell.keeper_lost(self.keeper, self._clean_up())
            state, instructions = machine.handle(self.config, state, event)
            name, why = machine.summary(state)
            node = self._diagnosis.node_rank
            seen.become(name, why or type(event).__name__, round=state.attempt.round, node=node)
            if isinstance(event, protocol.Noticed) and not event.handled_only:
                self._tell.noticed(event.signo, bool(instructions))
            for instruction in instructions:
                await self._carry_out(instruction)
        self._telemetry.follow(state)
        await self._close(state)
        return state.code

    def _prepare_standbys(self) -> None:
        if self.config.preload == ():
            return
        from torshrun.workers.standbys import Standbys, why_none

        if why := why_none(self.config, self.spec):
            self._tell.no_standbys(why)
            return
        try:
            make = partial(Standbys, self.config, self.spec, self._on_standbys_ready)
            self._group.prepare(make, self._tell.no_standbys)
        except OSError as error:
            self._tell.no_standbys(f"there are no standbys: {error.strerror}")

    def _on_standbys_ready(self, count: int, modules: Sequence[str]) -> None:
        self._tell.standbys_ready(count, modules)
        self._diagnosis.prepare()

    # ---- events

    def _on_rendezvous(self, event: base.RendezvousEvent) -> None:
        if isinstance(event, base.Granted):
            self._watchdog.grant(event.until)
        elif isinstance(event, base.StandingBy):
            self._tell.standing_by(event.reason)
        elif isinstance(event, base.Summaries):
            self._telemetry.summaries = event.by_node
            self._slowness.judge(event)
        elif isinstance(event, base.Asked):
            self._answering.ask(event)
        else:
            self._post(event)

    def _listen_to_signals(self) -> None:
        handlers: dict[int, Callable[[int], None]] = {}
        handlers |= dict.fromkeys(NOTICES, lambda signo: self._post(protocol.Noticed(signo)))
        handlers[signal.SIGTSTP] = lambda _: self._watchdog.suspend()
        handlers[signal.SIGWINCH] = self._on_resize
        handlers |= dict.fromkeys(self.config.signals_to_handle, self._on_stop_signal)
        for signo, handler in handlers.items():
            if signal.getsignal(signo) is not signal.SIG_IGN:  # nohup, or a shell's background
                self._loop.add_signal_handler(signo, handler, signo)

    def _on_stop_signal(self, signo: int) -> None:
        now = self._loop.time()
        if self._last_signal and now - self._signalled < ONE_REQUEST:
            return  # schedulers and shells send two at a time
        if not self._last_signal or signo == signal.SIGINT:
            self._signalled = now  # what is only repeated must not hide an interrupt
        self._last_signal = signo
        self._gpus.hurry()
        self._tell.emit("stop_requested", signal=signal_name(signo))
        self._post(protocol.StopRequested(signo))

    def _on_end_near(self) -> None:
        self._tell.end_near(self._time_limit.left)
        self._post(protocol.Noticed(signal.SIGUSR1, handled_only=True))

    def _on_end(self) -> None:
        """Leave as if the scheduler had asked for it, while workers still have their grace."""
        self._tell.say(f"{self._time_limit.left:.0f} s of the job's time are left: leaving it")
        self._on_stop_signal(signal.SIGTERM)

    def _keep_finding(self, finding: RootCause) -> None:
        """Keep the finding beside the output, for torshctl explain."""
        from torshrun.failure.exported_reports import encode_finding
        from torshrun.health.accounts import save_finding

        if self.folder:
            place = self._tell.round, self._diagnosis.node_rank
            with contextlib.suppress(OSError):  # of a full disk others tell
                save_finding(self.folder, *place, encode_finding(finding))

    def _on_resize(self, signo: int) -> None:
        self.pump.resize()
        self._group.send(signo)  # the workers' terminals are not their controlling ones

    def _on_internal_error(self, _loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
        """End the job after a mistake of our own in a callback, whose event is lost, so as not
        to hang.
        """
        error = facts.get("exception")
        if "socket" in facts and isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            self._tell.out_of_descriptors(error)  # the loop takes connections again by itself
            return
        trace = "".join(traceback.format_exception(error)) if error else facts.get("message", "")
        self._tell.say(f"internal error; please report this:\n{trace}")
        if "handle" in facts:  # a callback, and not a task of one of the store's connections
            self._post(protocol.InternalError())

    def _on_heartbeat(self) -> None:
        """Do what is due about once a second."""
        if not own_programs.run():
            reap_orphans(self.keeper.pid)
        self._keeper_watchdog.tick()
        self._standstill.tick(self._round)
        self._slowness.tick()
        self._tell.output_lost(self.pump.lost)
        if standbys := self._group.standbys:
            standbys.tick()
            self.rendezvous.note_standbys(standbys.count)
        self._telemetry.tick()

    # ---- what becomes of workers

    def on_started(self) -> None:
        workers = self._group.workers
        ranks, pids = [worker.rank for worker in workers], [worker.pid for worker in workers]
        self._tell.emit("workers_started", ranks=ranks, pids=pids)
        if self._round:
            self._hangs.start(self._round)
            self._standstill.begin()
            self._slowness.start(self._round)

    def on_not_started(self, worker: Worker, report: SpawnFailed) -> None:
        if self._complained_in != self._tell.round:  # the other ranks have the same reason
            self._complained_in = self._tell.round
            program = worker.assignment.argv[0]
            why = why_refused(program, report.errno)
            reason = f"rank {worker.rank}: cannot start {program}: {why} ({report.stage})"
            self._diagnosis.no_start = reason
            self._tell.start_failed(reason)
        self._post(protocol.NotStarted(self._tell.round, report.errno))

    def on_end(self, worker: Worker) -> None:
        if self.config.recover and self._round is not None and not worker.was_killed:
            end_copy(self._round.pages.path, worker, self.keeper.pid)
        self._post(protocol.WorkerEnded(self._tell.round, worker.local_rank, worker.status))

    def on_exit(self, worker: Worker) -> None:
        self._tell.worker_exited(worker)

    def on_killed(self) -> None:
        self._tell.emit("workers_killed", ranks=list(self._group.alive()))

    def on_leftovers(self, stage: Stage, names: Sequence[str], seconds: float) -> None:
        self._tell.say(describe(stage, names, seconds))
        self._tell.emit("processes_left", stage=stage, processes=list(names), seconds=seconds)

    def on_stopped(self, unkillable: tuple[str, ...]) -> None:
        self._diagnosing = self._start(self._diagnose(unkillable))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        # What goes wrong there is an internal error of a callback, and not forgotten.
        task.add_done_callback(lambda task: task.cancelled() or task.result())
        return task

    def on_dead_man(self) -> None:
        self._post(protocol.DeadManFired(self._tell.round))

    def on_keeper_answer(self) -> None:
        self._keeper_watchdog.answered()

    def on_keeper_lost(self) -> None:
        self._post(protocol.KeeperLost())

    def _on_timer(self, rank: int, finding: str) -> None:
        self._diagnosis.hung = {**self._diagnosis.hung, rank: finding}
        self._tell.say(f"rank {rank} is killed: {finding}")

    async def _settle(self, settle: protocol.Settle) -> None:
        """Wait for others that fail, longer as long as all blame a worker that has not failed."""
        follows = self._start_looking()
        await asyncio.sleep(settle.seconds)
        if await follows and await self._start_looking():
            await asyncio.sleep(CULPRIT_SECONDS)
        self._post(protocol.SettleOver(settle.round))

    def _start_looking(self) -> asyncio.Task[bool]:
        ranks = {worker.pid: worker.rank for worker in self._group.workers}
        looking = self._diagnosis.only_follow(list(self._group.endings), ranks)
        return self._loop.create_task(looking)

    async def _diagnose(self, unkillable: tuple[str, ...]) -> None:
        await self._group.drain()
        seconds = time.monotonic() - self._group.begun
        left = [worker for worker in self._group.workers if worker.alive]
        endings = [*self._group.endings, *left]
        found = self._found = await self._diagnosis.findings(endings, self._round)
        looks = found.cause and not self._last_signal
        broken = await self._gpus.after_failure(found) if looks else ""
        if broken:
            self._tell.gpus_broken(broken)
        self._tell.where_they_stood(await self._diagnosis.standing(endings))
        report = base.Report(
            round=self._tell.round,
            outcome="failed",
            code=found.cause.code if found.cause else 0,
            signo=found.cause.signo if found.cause and not found.cause.raised else 0,
            startup="" if self.config.retry_same_start else found.startup,
            seconds=seconds,
            cause=found.summary or self._diagnosis.no_start,
            follows=found.kind == "peer lost",
            testimony=found.testimony,
        )
        self._post(protocol.Diagnosed(report, unkillable, broken))

    # ---- instructions

    async def _carry_out(self, instruction: protocol.Instruction) -> None:
        if isinstance(instruction, protocol.StartWorkers):
            await self._start_or_restart_workers(instruction.place)
        elif isinstance(instruction, protocol.Settle):
            self._settling = self._start(self._settle(instruction))
        elif isinstance(instruction, protocol.PassOn):
            signo, handled_only, rank = instruction
            self._group.notify(signo, handled_only=handled_only, local_rank=rank)
        elif isinstance(instruction, protocol.StopWorkers):
            await self._stop_workers(instruction)
        elif isinstance(instruction, protocol.Mend):
            await self._mend(instruction)
        elif isinstance(instruction, protocol.TellRendezvous):
            self.rendezvous.report(instruction.report)
        elif isinstance(instruction, protocol.Leave):
            self._leave(instruction)
        elif isinstance(instruction, protocol.ReportFailure):
            self._tell.failed(instruction, self._found)
            self._telemetry.count_failure(self._found)

    def _leave(self, leave: protocol.Leave) -> None:
        if not self.config.is_alone and not self._group.alive():
            self._tell.say(f"got {signal_name(leave.signo)}: leaving the job")
        reason = f"{os.uname().nodename} got {signal_name(leave.signo)}"
        self.rendezvous.leave(leave.outcome, leave.code, reason)

    async def _start_or_restart_workers(self, place: base.NodeAssignment) -> None:
        config = self.config
        self._group.begin()
        self._tell.found_by_all(place.finding)
        self._tell.begin_round(place)
        self._telemetry.begin_round(place)
        self._slowness.place(place)
        self._diagnosis.begin(place.node_rank)
        if self._watchdog.expired:  # the keeper's timer has run out before there was any worker
            self.on_dead_man()
            return
        if broken := await self._gpus.before_start():
            self._refuse_start(broken, exit_codes.GPU_BROKEN)
            return
        try:
            await self._close_round()
            workers = config.nproc_per_node
            self._round = await Round.open(self.serve_store, self.scratch, place, workers)
            self._place = place
            self._telemetry.pages = self._round.pages
            self._telemetry.status_file = self._round.pages.path
            self._tell.round_started(place)
            store = self._round.store
            ends_at = self._time_limit.ends_at
            first = first_worker(config, place, self.scratch, store.endpoint, store.secret, ends_at)
            first = replace(first, is_replacement=place.kept)
            folder = f"{self.folder.path}/attempt_{place.round}" if self.folder else ""
            everyone = assign(self.spec, first, folder)
            self._group.start(everyone)
            if config.max_restarts:
                nodes = config.rendezvous
                self._recovery.start(store.store, nodes.ttl if nodes else None)
            if place.kept:
                await self._recovery.begin_round(place.round, everyone)
        except (OSError, RuntimeError, TorshError) as error:  # Runtime: no thread to be had
            self._refuse_start(f"cannot start the workers: {error}")

    def _refuse_start(self, reason: str, code: int = 0) -> None:
        """End the round that was about to begin."""
        self._diagnosis.no_start = reason
        self._tell.start_failed(reason)
        self._post(protocol.NotStarted(self._tell.round, code=code))

    # ---- workers that are replaced while the others continue

    async def _mend(self, instruction: protocol.Mend) -> None:
        if isinstance(instruction, protocol.EndRound):
            await self._end_round(instruction.at_commit)
        elif isinstance(instruction, protocol.StartAhead):
            await self._start_ahead(instruction.ranks)
        elif isinstance(instruction, protocol.TellExited):
            assert self._round is not None
            rank = self._group.workers[instruction.rank].rank
            on_all_nodes = instruction.on_all_nodes
            await self._recovery.tell_exited(self._round.number, rank, on_all_nodes)
        elif isinstance(instruction, protocol.KillWorkers):
            self._kill(instruction)
        elif isinstance(instruction, protocol.TellUnfit):
            rank = self._group.workers[instruction.rank].rank
            self._tell.unfit(instruction._replace(rank=rank))
        elif isinstance(instruction, protocol.WatchOn):
            assert self._round is not None
            self._hangs.start(self._round)
        elif isinstance(instruction, protocol.TellStanding):
            assert self._round is not None
            ran = time.monotonic() - self._group.begun
            self.rendezvous.mend(
                self._round.number, instruction.standing, ran, instruction.has_lost
            )
        elif isinstance(instruction, protocol.TellLasting):
            self.rendezvous.note_lasting(instruction.lasting)
        else:
            await self._replace_workers(instruction.ranks, instruction.place)

    async def _end_round(self, at_commit: bool) -> None:
        self._hangs.stop()
        self._slowness.stop()
        assert self._round is not None
        await self._recovery.end_round(self._round.number, at_commit)

    async def _start_ahead(self, ranks: Sequence[int]) -> None:
        """Start replacements while the survivors leave the round. They wait in join()."""
        now, a_round = self._place, self._round
        assert now is not None
        assert a_round is not None
        place = replace(now, round=now.round + 1, restarts=now.restarts + 1)
        self._unfit = await self._gpus.before_replacement()
        if self._unfit:
            return  # the next round is to be refused
        try:
            if self.config.recover:
                await self._adopt_copies(ranks, place, a_round)
                return
            self._group.start_ahead(self._replacements(ranks, place, a_round, "_ahead"))
        except (OSError, RuntimeError, TorshError) as error:
            self._refuse_start(f"cannot start the workers: {error}")

    async def _adopt_copies(
        self, ranks: Sequence[int], place: base.NodeAssignment, a_round: Round
    ) -> bool:
        """Have copies of these workers take their place. Return False, and restart all, if there
        are none."""
        for assignment in self._replacements(ranks, place, a_round):
            rank = assignment.worker.local_rank
            pid = await orphaned_copy(a_round.pages.path, rank, self.keeper.pid, self._adopted)
            if not pid:
                self._tell.say(no_copy(self._group.workers[rank].rank))
                self._post(protocol.CopyMissing(self._tell.round))
                return False
            self._adopted.add(pid)
            self._group.adopt_ahead(assignment, pid)
            await self._recovery.tell_adopted(pid, place.round)
        return True

    def _on_unprotected(self, local_rank: int, reason: str) -> None:
        if reason not in self._unprotected:  # the other ranks have the same reason
            self._unprotected.add(reason)
            self._tell.say(unprotected(self._group.workers[local_rank].rank, reason))

    def _replacements(
        self, ranks: Sequence[int], place: base.NodeAssignment, a_round: Round, mark: str = ""
    ) -> Sequence[Assignment]:
        """Return new workers in the place of these, in the store and pages of the survivors."""
        for rank in ranks:
            a_round.pages.clear(rank)
        everyone = self._everyone(place, a_round, mark)
        return [each for each in everyone if each.worker.local_rank in ranks]

    def _everyone(
        self, place: base.NodeAssignment, a_round: Round, mark: str = ""
    ) -> Sequence[Assignment]:
        """Return the workers of this node as replacements that begin in this place."""
        store, ends_at = a_round.store, self._time_limit.ends_at
        first = first_worker(
            self.config, place, self.scratch, store.endpoint, store.secret, ends_at
        )
        first = replace(first, status_file=a_round.pages.path, is_replacement=True)
        folder = f"{self.folder.path}/attempt_{place.round}" if self.folder else ""
        return assign(self.spec, first, folder, mark)

    async def _report_lost(
        self,
        lost: Round,
        failure: protocol.ReportFailure,
        endings: Sequence[Worker],
        before: asyncio.Task[None] | None,
    ) -> None:
        """Report a failure while the survivors go on, and after the report of the one before."""
        if before is not None:
            await before
        await asyncio.sleep(machine.SETTLE_SECONDS)  # in which the last output comes
        found = await self._diagnosis.findings(endings, lost)
        self._diagnosis.hung = {}
        self._tell.replaced(lost.number, failure, found)
        self._telemetry.count_failure(found)

    def _kill(self, kill: protocol.KillWorkers) -> None:
        why = "it did not leave the round in which another worker was lost"
        if kill.is_hang and self._hangs.finding:
            why = self._tell.hung(*self._hangs.finding)
        ranks = [self._group.workers[rank].rank for rank in kill.ranks]
        self._diagnosis.hung = {**self._diagnosis.hung, **dict.fromkeys(ranks, why)}
        self._group.kill(kill.ranks)

    async def _replace_workers(self, ranks: Sequence[int], place: base.NodeAssignment) -> None:
        """Begin the next round with the survivors, in the store and pages that they have."""
        endings, before = self._group.endings, self._round
        assert before is not None
        try:
            self._tell.begin_round(place)
            broken = self._unfit if ranks else ""
            failure = protocol.ReportFailure(place.restarts - 1, "broken" if broken else "replace")
            if ranks:
                report = self._report_lost(before, failure, endings, self._reporting)
                self._reporting = self._start(report)
            if broken:
                self._refuse_start(broken, exit_codes.GPU_BROKEN)
                return
            self._round, self._place = before._replace(number=place.round), place
            self._tell.round_started(place)
            everyone = self._everyone(place, before)
            if place.kept:
                await self._move(place, before, everyone)
            late = [rank for rank in ranks if rank not in self._group.ahead]
            if not self.config.recover:
                self._group.replace(self._replacements(late, place, before))
            elif await self._adopt_copies(late, place, before):
                self._group.replace(())
            else:
                return
            # Not before: who joins has to be a worker by then.
            await self._recovery.begin_round(place.round, everyone)
        except (OSError, RuntimeError, TorshError) as error:
            self._refuse_start(f"cannot start the workers: {error}")

    async def _move(
        self, place: base.NodeAssignment, a_round: Round, everyone: Sequence[Assignment]
    ) -> None:
        """Have this node's workers go on among others, where their ranks may be others."""
        await a_round.store.move(place)
        self._recovery.follow_others()
        self._group.move(everyone)
        self._telemetry.begin_round(place)
        self._slowness.place(place)
        self._diagnosis.node_rank = place.node_rank

    async def _stop_workers(self, stop: protocol.StopWorkers) -> None:
        self._hangs.stop()
        self._slowness.stop()
        if stop.cause == "done":
            self._group.finish(stop.signo, stop.grace)
            return
        if stop.cause == "hang" and self._hangs.finding:
            hang, stacks = self._hangs.finding
            self._diagnosis.hang = self._tell.hung(hang, stacks)
            self._diagnosis.stacks = stacks.texts
        if stop.cause == "signal" and (standing := self._standstill.found(self._round)):
            self._diagnosis.stood_still = self._tell.stood_still(standing)
        self._diagnosis.look(self._loop.time(), self._group, self._round)
        endings = list(self._group.endings)
        killed = any(each.was_killed for each in endings)  # that tells enough, so nobody waits
        if self._diagnosis.wants_stacks(stop.cause) and stop.grace > 0 and not killed:
            await self._group.leave_stacks()
            endings = list(self._group.endings)
        alive = self._group.alive()
        self._tell.stopping(stop, alive, self._last_signal)
        is_shared = self.config.signals_reach_workers and stop.cause in _BY_OTHERS
        is_known = is_shared and stop.grace > 0 and await self._group.have_got(stop.signo)
        self._group.stop(0 if is_known else stop.signo, stop.grace)  # handlers are to run once
        if stop.cause == "failure" and alive:
            cause = (await self._diagnosis.findings(endings)).cause
            self._tell.stopping_others(stop, alive, cause)

    def _is_untidy(self) -> bool:
        """Return whether the scratch directory is left.

        It is if the keeper was killed before removing it.
        """
        return os.path.lexists(self.scratch)

    def _clean_up(self) -> tuple[str, ...]:
        """Do what the keeper can no longer do. Return the processes that could not be killed."""
        import shutil

        left = kill_descendants(KEEPER_BOUND)
        shutil.rmtree(self.scratch, ignore_errors=True)
        return left

    # ---- the end

    async def _close(self, state: machine.Finished) -> None:
        self._hangs.close()
        self._slowness.close()
        await self._answering.close()
        if self._settling:
            self._settling.cancel()
        if self._reporting:  # what became of a lost worker is to be read before the end
            with contextlib.suppress(asyncio.CancelledError):
                await self._reporting
        self._time_limit.stop()
        await self._close_round()
        self._watchdog.stop()
        self._group.close()
        if not self.keeper.close(KEEPER_BOUND) or self._is_untidy():
            self._clean_up()
        self.commit_memory.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RENDEZVOUS_BOUND):
                await self.rendezvous.close()
        self._tell.output_lost(self.pump.lost)
        self._tell.job_finished(state)
        self._telemetry.close()
        self._gpus.close()
        if not await self.pump.finish(self.pump.close, self._stall):
            self.pump.give_up()
        # The exit code stands: nothing may change it while the interpreter ends.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    async def _close_round(self) -> None:
        self._recovery.stop()
        if self._round is not None:
            over, self._round, self._telemetry.pages = self._round, None, None
            await over.close()

    def _stall(self) -> float:
        return 1.0 if self._last_signal else READER_STALL
