"""The agent: the only loop. Feeds events to the machine and carries out its instructions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torsh_runtime.errors import TorshError
from torshrun import failure
from torshrun.agent import machine
from torshrun.config import LaunchConfig
from torshrun.workers.events import GroupStopped, SpawnFailed, WorkerEvent
from torshrun.workers.group import Ending, WorkerGroup
from torshrun.workers.keeper import Keeper, kill_descendants
from torshrun.workers.logs import LogPump
from torshrun.workers.ports import choose_port
from torshrun.workers.spec import RoundFacts, WorkerSpec, assign

KEEPER_BOUND = 5.0
"""Seconds that the keeper, or what it left, may take to go."""
STORE_BOUND = 2.0
"""Seconds that a round's store may take to close."""
ACCOUNT_BYTES = 1 << 20
"""How much of a worker's error file is read."""
READER_STALL = 30.0
"""Seconds that the last output waits for a reader who does not read; 1 s after a stop request."""


class RoundStore(Protocol):
    """One round's store, while it is served to this node's workers."""

    @property
    def endpoint(self) -> str:
        """Where workers reach it."""

    async def close(self) -> None:
        """Stop serving it and forget its keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the agent works with. It closes the keeper and the pump."""

    spec: WorkerSpec
    keeper: Keeper
    pump: LogPump
    scratch: str
    """Temporary directory, which is the keeper's to remove."""
    folder: str
    """Directory for the attempts' directories."""
    secret: str
    """The job's secret in hexadecimal."""
    serve_store: Callable[[], Awaitable[RoundStore]]
    """Serves a fresh store."""


class Agent:
    """Supervises this node's workers until the job is over here."""

    def __init__(self, config: LaunchConfig, surroundings: Surroundings) -> None:
        self._config = config
        self._around = surroundings
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[machine.Event] = asyncio.Queue()
        self._group = WorkerGroup(
            surroundings.keeper, surroundings.pump, self._loop, self._on_worker_event
        )
        self._store: RoundStore | None = None
        self._last_signal = 0
        self._complained_in = -1
        self._policy = machine.Policy(
            ranks=frozenset(range(config.nproc_per_node)),
            max_restarts=config.max_restarts,
            grace=config.shutdown_timeout,
        )

    async def run(self) -> int:
        """Run the job; its exit code. No worker is left afterwards."""
        self._listen_to_signals()
        self._loop.set_exception_handler(self._on_internal_error)
        state, instructions = machine.begin(self._policy)
        while True:
            for instruction in instructions:
                await self._carry_out(instruction)
            if isinstance(state, machine.Finished):
                break
            state, instructions = machine.handle(self._policy, state, await self._events.get())
        await self._close()
        return state.code

    # ---- events

    def _listen_to_signals(self) -> None:
        for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(signo) is not signal.SIG_IGN:  # nohup, or a shell's background
                self._loop.add_signal_handler(signo, self._on_signal, signo)

    def _on_signal(self, signo: int) -> None:
        self._last_signal = signo
        self._events.put_nowait(machine.StopRequested(signo))

    def _on_internal_error(self, _loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
        """A mistake of our own in a callback, whose event is lost: end the job, do not hang."""
        error = facts.get("exception")
        trace = "".join(traceback.format_exception(error)) if error else facts.get("message", "")
        self._say(f"internal error; please report this:\n{trace}")
        if "handle" in facts:  # a callback, and not a task of one of the store's connections
            self._events.put_nowait(machine.InternalError())

    def _on_worker_event(self, event: WorkerEvent) -> None:
        if isinstance(event, GroupStopped):
            self._events.put_nowait(self._diagnose(event))
            return
        if isinstance(event, SpawnFailed) and self._complained_in != event.round:
            self._complained_in = event.round  # the other ranks have the same reason
            self._say(f"error: {event.reason}")
        self._events.put_nowait(event)

    def _diagnose(self, event: GroupStopped) -> machine.Diagnosed:
        cause = failure.root_cause(self._exits())
        return machine.Diagnosed(event.round, cause.code if cause else 0, event.unkillable)

    # ---- instructions

    async def _carry_out(self, instruction: machine.Instruction) -> None:
        if isinstance(instruction, machine.StartWorkers):
            await self._start_workers(instruction)
        elif isinstance(instruction, machine.Settle):
            over = machine.SettleOver(instruction.round)
            self._loop.call_later(instruction.seconds, self._events.put_nowait, over)
        elif isinstance(instruction, machine.StopWorkers):
            self._announce_stop(instruction)
            self._group.stop(instruction.signo, instruction.grace)
        elif isinstance(instruction, machine.ReportFailure):
            self._report(instruction)
        elif isinstance(instruction, machine.KillDescendants):
            self._kill_descendants()

    async def _start_workers(self, instruction: machine.StartWorkers) -> None:
        config, around = self._config, self._around
        self._group.begin(instruction.round)
        try:
            await self._close_store()
            self._store = await around.serve_store()
            facts = RoundFacts(
                number=instruction.round,
                restart_count=instruction.restarts,
                master_port=choose_port(config.master_port),
                store_endpoint=self._store.endpoint,
                secret=around.secret,
                scratch=around.scratch,
                folder=f"{around.folder}/attempt_{instruction.restarts}",
                keep_output=config.output.log_dir is not None,
            )
            self._group.start(assign(config, around.spec, facts))
        except (OSError, TorshError) as error:
            self._say(f"error: cannot start the workers: {error}")
            self._events.put_nowait(machine.StartFailed(instruction.round))

    def _announce_stop(self, stop: machine.StopWorkers) -> None:
        num_alive = self._group.num_alive()
        others = f"{num_alive} worker{'s' if num_alive > 1 else ''}"
        limit = f"within {stop.grace:g} s" if stop.grace else "at once"
        if stop.cause == "signal":
            name = failure.signal_name(self._last_signal)
            hint = "; a second signal kills them at once" if stop.grace else ""
            self._say(f"got {name}: ending {others} {limit}{hint}")
        elif stop.cause == "failure" and num_alive:
            ended = failure.root_cause(self._exits())
            who = f"rank {ended.rank} failed ({failure.how(ended)}): " if ended else ""
            self._say(f"{who}stopping the other {others} {limit}")
        elif stop.cause == "dead man":
            self._say("error: this node's lease ran out, so the keeper killed all its workers")

    def _report(self, report: machine.ReportFailure) -> None:
        if report.unkillable:
            pids = ", ".join(map(str, report.unkillable))
            self._say(
                f"error: processes that do not die of SIGKILL are left: {pids}. They wait for "
                f"the kernel (a device, a network file system); look at their state with ps."
            )
        self._around.pump.say(failure.describe(self._exits(), self._outlook(report)))

    def _outlook(self, report: machine.ReportFailure) -> str:
        budget = self._config.max_restarts
        attempt = f"attempt {report.restarts + 1} of {budget + 1}"
        if report.restarting:
            left = budget - report.restarts - 1
            return f"{attempt}: restarting, {left} of {budget} restarts left"
        return f"{attempt}: the job has failed" + (", no restarts left" if budget else "")

    def _exits(self) -> list[failure.Exit]:
        host = os.uname().nodename
        kept = self._config.output.log_dir is not None
        return [_exit(ending, host, kept) for ending in self._group.endings()]

    def _kill_descendants(self) -> None:
        """The keeper's work, and its scratch directory, when it cannot do it."""
        import shutil

        left = kill_descendants(KEEPER_BOUND)
        shutil.rmtree(self._around.scratch, ignore_errors=True)
        remains = f"; these are left: {', '.join(map(str, left))}" if left else ""
        self._say(
            f"error: the keeper (torsh-keeper, pid {self._around.keeper.pid}) has died, so all "
            f"workers were killed{remains}. It is what keeps them from being left behind; look "
            f"for who or what killed it (the kernel's log, if memory ran out)."
        )

    def _say(self, text: str) -> None:
        self._around.pump.say(f"torshrun: {text}")

    # ---- the end

    async def _close(self) -> None:
        await self._close_store()
        self._group.close()
        self._around.keeper.close(KEEPER_BOUND)
        self._around.pump.close()
        await self._wait_for_reader()

    async def _close_store(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STORE_BOUND):
                    await store.close()

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


def _exit(ending: Ending, host: str, kept: bool) -> failure.Exit:
    place = ending.assignment.worker
    return failure.Exit(
        rank=place.rank,
        host=host,
        pid=ending.pid,
        status=ending.status,
        seconds=ending.seconds,
        stopped=ending.stopped,
        stderr=ending.stderr,
        account=_read_account(place.error_file),
        log=ending.assignment.folder if kept else "",
    )


def _read_account(path: str) -> str:
    """What a worker left in its error file, which may be anything at all."""
    import json

    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return failure.read_account(json.loads(file.read(ACCOUNT_BYTES)))
    except (OSError, ValueError, RecursionError):
        return ""
