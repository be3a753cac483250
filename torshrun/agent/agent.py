"""The agent: the only loop. Feeds events to the machine and carries out its instructions."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torsh_runtime.errors import TorshError
from torshrun.agent import machine, protocol
from torshrun.agent.announcer import Announcer
from torshrun.agent.dead_man_timer import DeadManTimer
from torshrun.agent.diagnosis import Diagnosis, Findings
from torshrun.agent.hang_monitor import Finding, HangMonitor
from torshrun.agent.job_status import JobStatus
from torshrun.agent.round import Round, ServeStore, first_worker
from torshrun.agent.telemetry import Telemetry
from torshrun.config import LaunchConfig
from torshrun.rendezvous.base import (
    Granted,
    JobOver,
    Place,
    Rendezvous,
    RendezvousEvent,
    Report,
    RoundClosing,
    StandingBy,
)
from torshrun.safe_files import Folder
from torshrun.signals import signal_name
from torshrun.workers.events import (
    DeadManFired,
    GroupStarted,
    GroupStopped,
    SpawnFailed,
    WorkerEvent,
    WorkerExited,
    WorkersKilled,
)
from torshrun.workers.group import WorkerGroup
from torshrun.workers.keeper import Keeper
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.processes import kill_descendants, reap_orphans
from torshrun.workers.spec import WorkerSpec, assign

KEEPER_BOUND = 5.0
"""Seconds that the keeper, or what it left, may take to go."""
RENDEZVOUS_BOUND = 15.0
"""Seconds that taking leave of the other nodes may take."""
READER_STALL = 30.0
"""Seconds that the last output waits for a reader who does not read; 1 s after a stop request."""
ONE_REQUEST = 0.1
"""Seconds in which stop signals count as one request."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are for the workers, unless the user names them as ones that stop the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the agent works with. It closes all of it."""

    spec: WorkerSpec
    keeper: Keeper
    pump: LogPump
    scratch: str
    """Temporary directory, which is the keeper's to remove."""
    folder: Folder | None
    """Directory for the attempts' directories, if any output is kept."""
    rendezvous: Rendezvous
    """Says which rounds this node takes part in."""
    serve_store: ServeStore
    """Serves a round's store."""
    telemetry: Telemetry
    """What is shown to others."""


class Agent:
    """Supervises this node's workers until the job is over here."""

    def __init__(self, config: LaunchConfig, surroundings: Surroundings) -> None:
        self._config = config
        self._around = surroundings
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[protocol.Event] = asyncio.Queue()
        self._group = WorkerGroup(
            surroundings.keeper, surroundings.pump, self._loop, self._on_worker_event
        )
        self._round: Round | None = None
        self._tell = Announcer(config, surroundings.pump.say, surroundings.telemetry.recorder)
        self._status = JobStatus(
            config, self._pids, self._steps, lambda: surroundings.pump.received
        )
        surroundings.telemetry.status = self._status
        self._dead_man = DeadManTimer(
            self._loop, surroundings.keeper, config.agent_timeout, self._on_renewal
        )
        self._diagnosis = Diagnosis(config.output, surroundings.folder)
        self._hangs = HangMonitor(
            config.hang_timeout,
            self._loop,
            surroundings.keeper,
            surroundings.pump,
            self._group,
            self._events.put_nowait,
            surroundings.spec.timer_file,
            self._on_timer,
        )
        self._found = Findings()
        self._diagnosing: asyncio.Task[None] | None = None
        self._last_signal, self._signalled = 0, 0.0
        self._complained_in = -1
        self._policy = protocol.Policy(
            workers=config.nproc_per_node,
            grace=config.shutdown_timeout,
            leased=config.rendezvous is not None,
        )

    async def run(self) -> int:
        """Run the job; its exit code. No worker is left afterwards."""
        self._listen_to_signals()
        self._loop.set_exception_handler(self._on_internal_error)
        self._tell.job_started(self._around.folder.path if self._around.folder else "")
        self._around.telemetry.open()
        self._dead_man.renew()
        self._around.rendezvous.start(self._on_rendezvous)
        state = machine.begin()
        while not isinstance(state, protocol.Finished):
            self._status.follow(state)
            event = await self._events.get()
            if isinstance(event, protocol.Diagnosed):
                self._tell.round_ended(_cause_of(state), event)
            if isinstance(event, RoundClosing | JobOver):
                self._tell.decided(event)
            state, instructions = machine.handle(self._policy, state, event)
            if isinstance(event, protocol.Noticed):
                self._tell.notice_handled(event.signo, bool(instructions))
            for instruction in instructions:
                await self._carry_out(instruction)
        self._status.follow(state)
        await self._close(state)
        return state.code

    # ---- events

    def _on_rendezvous(self, event: RendezvousEvent) -> None:
        if isinstance(event, Granted):
            self._dead_man.grant(event.until)
        elif isinstance(event, StandingBy):
            self._tell.standing_by(event.reason)
        else:
            self._events.put_nowait(event)

    def _listen_to_signals(self) -> None:
        handlers: dict[int, Callable[[int], None]] = dict.fromkeys(NOTICES, self._on_notice)
        handlers[signal.SIGTSTP] = lambda _: self._dead_man.suspend(self._group)
        handlers[signal.SIGWINCH] = self._on_resize
        handlers |= dict.fromkeys(self._config.signals_to_handle, self._on_stop_signal)
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
        self._tell.signal_received(signo, "stop_requested")
        self._events.put_nowait(protocol.StopRequested(signo))

    def _on_notice(self, signo: int) -> None:
        self._tell.signal_received(signo, "notice")
        self._events.put_nowait(protocol.Noticed(signo))

    def _on_resize(self, signo: int) -> None:
        self._around.pump.resize()
        self._group.send(signo)  # the workers' terminals are not their controlling ones

    def _on_internal_error(self, _loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
        """A mistake of our own in a callback, whose event is lost: end the job, do not hang."""
        error = facts.get("exception")
        if "socket" in facts and isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            self._tell.out_of_descriptors(error)  # the loop takes connections again by itself
            return
        trace = "".join(traceback.format_exception(error)) if error else facts.get("message", "")
        self._tell.say(f"internal error; please report this:\n{trace}")
        if "handle" in facts:  # a callback, and not a task of one of the store's connections
            self._events.put_nowait(protocol.InternalError())

    def _on_renewal(self) -> None:
        """Once a second or so."""
        if not self._hangs.inquires:  # that starts processes of its own
            reap_orphans(self._around.keeper.pid)
        self._tell.output_lost(self._around.pump.lost)
        if self._around.telemetry.is_looked_at:  # a snapshot costs time for each worker
            self._status.refresh()
            self._around.telemetry.tick()

    def _on_worker_event(self, event: WorkerEvent) -> None:
        if isinstance(event, GroupStarted):
            self._on_started()
        elif isinstance(event, GroupStopped):
            self._diagnosing = self._loop.create_task(self._diagnose(event))
            self._diagnosing.add_done_callback(_raise_in_loop)
        elif isinstance(event, WorkersKilled):
            self._tell.emit("workers_killed", ranks=list(event.ranks))
        else:
            if isinstance(event, WorkerExited):
                self._tell.worker_exited(self._diagnosis.exit(self._group.endings()[-1]))
            if isinstance(event, SpawnFailed) and self._complained_in != event.round:
                self._complained_in = event.round  # the other ranks have the same reason
                self._tell.start_failed(event.reason)
            self._events.put_nowait(event)

    def _on_started(self) -> None:
        self._tell.workers_started(self._group.workers())
        if self._round:
            self._hangs.start(self._round)

    def _on_timer(self, rank: int, finding: str) -> None:
        self._diagnosis.hung = {**self._diagnosis.hung, rank: finding}
        self._tell.say(f"rank {rank} is killed: {finding}")

    async def _diagnose(self, event: GroupStopped) -> None:
        a_round, seconds = self._round, time.monotonic() - self._group.begun
        found = self._found = await self._diagnosis.findings(
            self._group.endings(),
            a_round.memory if a_round else None,
            a_round.statuses() if a_round else (),
        )
        report = Report(
            round=event.round,
            outcome="failed",
            code=found.cause.code if found.cause else 0,
            signo=found.cause.signo if found.cause else 0,
            startup="" if self._config.retry_same_start else found.startup,
            seconds=seconds,
            cause=found.summary,
            follows=found.kind == "peer lost",
        )
        self._events.put_nowait(protocol.Diagnosed(report, event.unkillable))

    def _pids(self) -> list[int]:
        pids = [worker.pid if worker.alive else 0 for worker in self._group.workers()]
        return pids or [0] * self._config.nproc_per_node

    def _steps(self) -> list[int | None]:
        return [status.step for status in self._round.statuses()] if self._round else []

    # ---- instructions

    async def _carry_out(self, instruction: protocol.Instruction) -> None:
        if isinstance(instruction, protocol.StartWorkers):
            await self._start_workers(instruction.place)
        elif isinstance(instruction, protocol.Settle):
            over = protocol.SettleOver(instruction.round)
            self._loop.call_later(instruction.seconds, self._events.put_nowait, over)
        elif isinstance(instruction, protocol.PassOn):
            self._group.notify(instruction.signo)
        elif isinstance(instruction, protocol.StopWorkers):
            await self._stop_workers(instruction)
        elif isinstance(instruction, protocol.TellRendezvous):
            self._around.rendezvous.report(instruction.report)
        elif isinstance(instruction, protocol.Leave):
            self._leave(instruction)
        elif isinstance(instruction, protocol.ReportFailure):
            await self._tell.failed(instruction, self._found)
            self._status.count_failure(self._found)
        elif isinstance(instruction, protocol.KillDescendants):
            self._tell.keeper_lost(self._around.keeper.pid, self._clean_up())

    def _leave(self, leave: protocol.Leave) -> None:
        if self._policy.leased and not self._group.alive():
            self._tell.leaving(leave.signo)
        reason = f"{os.uname().nodename} got {signal_name(leave.signo)}"
        self._around.rendezvous.leave(leave.outcome, leave.code, reason)

    async def _start_workers(self, place: Place) -> None:
        config, around = self._config, self._around
        self._group.begin(place.round)
        self._tell.begin_round(place)
        self._status.begin_round(place)
        self._diagnosis.hung = {}
        if self._dead_man.expired:  # the keeper's timer has run out before there was any worker
            self._events.put_nowait(DeadManFired(place.round))
            return
        try:
            await self._close_round()
            self._round = await Round.open(
                around.serve_store, around.scratch, place, config.nproc_per_node
            )
            self._tell.round_started(place)
            first = first_worker(config, place, self._round, around.scratch)
            folder = f"{around.folder.path}/attempt_{place.round}" if around.folder else ""
            self._group.start(assign(around.spec, first, folder))
        except (OSError, RuntimeError, TorshError) as error:  # Runtime: no thread to be had
            self._tell.start_failed(f"cannot start the workers: {error}")
            self._events.put_nowait(protocol.StartFailed(place.round))

    async def _stop_workers(self, stop: protocol.StopWorkers) -> None:
        self._hangs.stop()
        if stop.cause == "hang" and self._hangs.finding:
            self._tell_hang(self._hangs.finding)
        endings, alive = self._group.endings(), self._group.alive()
        self._tell.stopping(stop, alive)
        self._group.stop(stop.signo, stop.grace)
        if stop.cause == "failure" and alive:
            found = await self._diagnosis.findings(endings)
            self._tell.stopping_others(stop, alive, found.cause)

    def _tell_hang(self, finding: Finding) -> None:
        from torshrun.health.report import summary as found

        self._diagnosis.hung = {finding.hang.suspect: found(finding.hang)}
        self._tell.hung(*finding)

    def _clean_up(self) -> tuple[str, ...]:
        """The keeper's work when it cannot do it: kill all descendants, remove the scratch
        directory. Names the processes that are left.
        """
        import shutil

        left = kill_descendants(KEEPER_BOUND)
        shutil.rmtree(self._around.scratch, ignore_errors=True)
        return left

    # ---- the end

    async def _close(self, state: protocol.Finished) -> None:
        self._hangs.close()
        await self._close_round()
        self._dead_man.stop()
        self._group.close()
        if not self._around.keeper.close(KEEPER_BOUND):
            self._clean_up()
        await self._leave_rendezvous()
        self._tell.output_lost(self._around.pump.lost)
        self._tell.job_finished(state)
        self._around.telemetry.close()
        self._around.pump.close()
        await self._wait_for_reader()
        # The exit code stands: nothing may change it while the interpreter ends.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    async def _leave_rendezvous(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RENDEZVOUS_BOUND):
                await self._around.rendezvous.close()

    async def _close_round(self) -> None:
        if self._round is not None:
            over, self._round = self._round, None
            await over.close()

    async def _wait_for_reader(self) -> None:
        """Until all output is out, a reader has not read for READER_STALL, or a stop request."""
        pump = self._around.pump
        moved, last_move = -1, self._loop.time()
        while not pump.is_closed(0.001):
            if pump.moved != moved:
                moved, last_move = pump.moved, self._loop.time()
            stall = 1.0 if self._last_signal else READER_STALL
            if self._loop.time() - last_move > stall:
                pump.give_up()
                return
            await asyncio.sleep(0.005)


def _cause_of(state: protocol.State) -> protocol.Cause:
    return state.cause if isinstance(state, protocol.Stopping) else "failure"


def _raise_in_loop(task: asyncio.Task[None]) -> None:
    """As a callback: its mistakes are internal errors, and not forgotten."""
    if not task.cancelled():
        task.result()
