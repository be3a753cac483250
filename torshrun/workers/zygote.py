"""Runs a process that imports ahead, and the standbys that are forked from it.

Workers whose commands and variables are equal, except for their places, share a zygote. The machine
in zygote_machine decides what is done with these processes; it is carried out here.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.transitions import Machine
from torshrun.procfs import read_stat
from torshrun.topology.memory import available_memory
from torshrun.topology.tasks import available_tasks
from torshrun.workers import keeper as reports
from torshrun.workers import zygote_machine as machine
from torshrun.workers import zygote_protocol as protocol
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.standby_process import StandbyProcess

VARIABLE = "TORSH_PARK"
"""Variable that makes a process wait, and says how: see startup/torsh_standby.py."""
PREFIX = "[preload] "
"""Prefix of what modules write while they are imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteServices:
    """Holds the services that zygotes use."""

    loop: asyncio.AbstractEventLoop
    keeper: reports.Keeper
    pump: LogPump
    new_id: Callable[[], int]
    """For processes of the keeper."""
    inherited: tuple[int, ...]
    """Descriptors that each worker gets behind its standard streams."""
    on_change: Callable[[], None]
    """Called when a standby is ready, or when none is expected any more."""
    complain: Callable[[str], None]
    """Gets the reason why workers have to import for themselves."""


@dataclass(eq=False)
class Zygote:
    """Feeds the machine with what becomes of its processes, in the loop's thread only."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    told: Mapping[str, Any]
    """Facts about what to import, and for whom: see startup/torsh_standby.py."""
    around: ZygoteServices
    shares_session: bool = False
    """Like WorkerSpec.shares_session, for standbys."""

    def __post_init__(self) -> None:
        self.state = machine.State()
        self._parked: dict[int, StandbyProcess] = {}
        self._bound: asyncio.TimerHandle | None = None  # of what the process is doing now
        self._seen = Machine("zygote", self.state.phase)

    # ---- what others ask for

    def start(self, wanted: int) -> None:
        """Begin to import, for `wanted` standbys.

        After an OSError workers import for themselves.
        """
        self._feed(protocol.Beginning(wanted))
        if why := machine.why_no_tasks(wanted, available_tasks()):
            raise OSError(errno.EAGAIN, why)
        process = self._new(self._on_announcement, lambda _: None)
        try:
            self._spawn(process)
        except OSError:
            self._let_go(process.worker_id)
            raise
        self._feed(protocol.Started(process.worker_id))

    def take(
        self, environ: Mapping[str, str], cpus: Sequence[int], ends: Sequence[int]
    ) -> StandbyProcess | None:
        """Make a standby the worker with this environment, these processors if there are any, and
        these descriptors 0, 1, 2, ..; None if there is none that would be.
        """
        own = {name: text for name, text in environ.items() if self.environ.get(name) != text}
        while self.state.standbys:
            parked = self._parked[self.state.standbys[-1]]
            if not parked.send({"do": "take", "environ": own, "cpus": cpus}, ends):
                self._feed(protocol.Taken(is_usable=False))
                continue
            self.around.keeper.take(parked.worker_id)
            # One that somebody has stopped would be waited for by all other workers.
            self.around.keeper.signal(parked.worker_id, signal.SIGCONT, alone=True)
            self._feed(protocol.Taken(is_usable=True))
            return parked
        return None

    def fill(self, wanted: int, room: int) -> None:
        """Provide `wanted` standbys, with `room` bytes of memory left for each."""
        self._feed(protocol.Wanted(wanted, room))

    def catch_up(self, recorded: str, size: int) -> None:
        """Import what a worker has since, unless that is done; the file of this size names it."""
        self._feed(protocol.Imported(recorded, size))

    def on_report(self, report: reports.Report) -> None:
        """Handle the keeper's report of a process, which may be one of these."""
        number = getattr(report, "worker_id", -1)
        if number not in self.state.processes:
            return
        if isinstance(report, reports.Spawned):
            if number != self.state.process:
                self._feed(protocol.Owned(number))
        elif number == self.state.process:
            self._feed(protocol.Ended(_how(getattr(report, "status", 0))))
        else:
            self._feed(protocol.Died(number))

    def close(self) -> None:
        """Let go of all; those that are not workers end."""
        self._feed(protocol.Closed())

    # ---- the machine

    def _feed(self, event: protocol.Event) -> None:
        self.state, instructions = machine.handle(self.state, event)
        whys = (each.why for each in instructions if isinstance(each, protocol.Complain))
        self._seen.become(self.state.phase, next(whys, type(event).__name__))
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: protocol.Instruction) -> None:
        match instruction:
            case protocol.Begin():
                self._begin_anew()
            case protocol.LookForRoom():
                self._look_for_room()
            case protocol.Fork():
                self._fork()
            case protocol.Import(recorded):
                self._tell_process({"do": "import", "recorded": recorded})
            case protocol.Kill(process):
                self.around.keeper.signal(process, signal.SIGKILL, alone=True)
                self._let_go(process)
            case protocol.LetGo(process):
                self._let_go(process)
            case protocol.Expect() | protocol.ExpectNothing():
                self._expect(instruction)
            case protocol.Complain(why):
                self.around.complain(why)
            case protocol.TellChange():
                self.around.on_change()

    def _begin_anew(self) -> None:
        try:
            self.start(self.state.wanted)
        except OSError as error:
            self._feed(protocol.StartRefused(error.strerror or str(error)))

    def _look_for_room(self) -> None:
        state = self.state
        if state.missing > 0 and state.phase in ("forks", "separate"):
            forks = state.room and state.phase == "forks"
            tasks = available_tasks() if forks else sys.maxsize
            self._feed(protocol.RoomSeen(available_memory(), tasks))

    def _expect(self, bound: protocol.Expect | protocol.ExpectNothing) -> None:
        if self._bound:
            self._bound.cancel()
        if isinstance(bound, protocol.Expect):
            failed = protocol.Failed(f"{bound.what} longer than {bound.seconds:.0f} s")
            self._bound = self.around.loop.call_later(bound.seconds, self._feed, failed)

    # ---- processes

    def _new(
        self,
        hear: Callable[[StandbyProcess, Mapping[str, Any]], None],
        lose: Callable[[StandbyProcess], None],
    ) -> StandbyProcess:
        parked = StandbyProcess(self.around.new_id(), self.around.loop, hear, lose)
        self._parked[parked.worker_id] = parked
        return parked

    def _let_go(self, process: int) -> None:
        if parked := self._parked.pop(process, None):
            parked.close()

    def _spawn(self, process: StandbyProcess) -> None:
        around, told = self.around, {**self.told, "socket": 3 + len(self.around.inherited)}
        environ = {**self.environ, VARIABLE: json.dumps(told)}
        streams = around.pump.open_shown(PREFIX)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        ends = [nothing, streams[0].source.end, streams[-1].source.end]
        fds = (*ends, *around.inherited, process.end.fileno())
        try:
            around.keeper.spawn(
                process.worker_id, self.argv, environ, "", fds,
                parked=True, shares_session=self.shares_session,
            )  # fmt: skip
        finally:
            process.end.close()
            for end in set(ends):
                os.close(end)

    def _tell_process(self, facts: Mapping[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """Send a message to the process that imports, and return whether all of it went."""
        process = self._parked.get(-1 if self.state.process is None else self.state.process)
        return process is not None and process.send(facts, descriptors)

    def _fork(self) -> None:
        if self.state.phase != "forks":  # the fork before has failed
            return
        try:
            parked = self._new(self._on_hello, self._on_silence)
        except OSError as error:
            self._feed(protocol.Failed(f"{error.strerror}"))
            return
        self._feed(protocol.Forking(parked.worker_id))
        request = {"do": "fork", "shares_session": self.shares_session}
        if not self._tell_process(request, [parked.end.fileno()]):
            self._feed(protocol.Failed("the process that does hears nothing any more"))
        parked.end.close()

    # ---- what processes say

    def _on_announcement(self, process: StandbyProcess, facts: Mapping[str, Any]) -> None:
        why_not = str(facts.get("why_not_fork", ""))
        stat = read_stat(process.pid) if why_not else None
        announced = protocol.Announced(
            modules=_names(facts.get("modules")),
            failed=_texts(facts.get("failed")),
            reads=_texts(facts.get("reads")),
            why_not_fork=why_not,
            weight=stat.resident if stat else 0,
        )
        self._feed(announced)

    def _on_hello(self, parked: StandbyProcess, facts: Mapping[str, Any]) -> None:
        pid = facts.get("pid")
        if parked.worker_id not in self.state.forking or parked.is_claimed:
            return
        if isinstance(pid, int) and 0 < pid < 1 << 31:
            parked.is_claimed = True
            self.around.keeper.own(parked.worker_id, pid, parked.pid)

    def _on_silence(self, parked: StandbyProcess) -> None:
        if not parked.is_claimed:  # else the keeper tells of its end
            self._feed(protocol.Died(parked.worker_id))


def _how(status: int) -> str:
    """Describe how a process ended, from the status that waitpid returned."""
    return f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"


def _names(told: object) -> tuple[str, ...]:
    return tuple(map(str, told)) if isinstance(told, list) else ()


def _texts(told: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in told.items()} if isinstance(told, dict) else {}
