"""One process that imports ahead, and the standbys that are forked from it.

All workers that have their command and variables in common, but for their places, come from one.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torshrun.procfs import read_stat
from torshrun.topology.memory import available_memory
from torshrun.topology.tasks import available_tasks
from torshrun.workers import keeper as reports
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.parked import Parked

IMPORT_BOUND = 120.0
"""Seconds that imports may take; a worker that imports for itself takes as long."""
FORK_BOUND = 10.0
"""Seconds that a fork may take."""
MOST_DEATHS = 3
"""Standbys that may die, none being taken meanwhile, before there are to be no more."""
MOST_REVIVALS = 3
"""How often one that has imported is started anew after something has killed it."""
TASKS = 32
"""Processes and threads that there must be room for, for each standby: workers start some."""
VARIABLE = "TORSH_PARK"
"""Tells a process that it is to wait, and how: startup/torsh_standby.py."""
PREFIX = "[preload] "
"""Stands before what modules write while they are imported."""

State = Literal["importing", "forks", "catching up", "separate", "gone"]
"""catching up: it imports what workers have since, and forks again afterwards; separate: it cannot
be forked, and so is a standby itself, until it is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What importers have to do with."""

    loop: asyncio.AbstractEventLoop
    keeper: reports.Keeper
    pump: LogPump
    new_id: Callable[[], int]
    """For processes of the keeper."""
    inherited: tuple[int, ...]
    """Descriptors that each worker gets behind its standard streams."""
    on_change: Callable[[], None]
    """Is called when a standby is there, or none is to be expected any more."""
    complain: Callable[[str], None]
    """Gets the reason why workers have to import for themselves."""


@dataclass(eq=False)
class Importer:
    """Used in the loop's thread only."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    told: Mapping[str, Any]
    """What to import, and for whom: startup/torsh_standby.py."""
    around: Surroundings
    wanted: int = 0
    """How many standbys there are to be."""
    room: int = 0
    """Bytes of memory that must be left for each that is forked."""
    state: State = "gone"
    modules: tuple[str, ...] = ()
    """What it has imported of what it was told."""
    standbys: list[Parked] = field(default_factory=list)
    """Those that can be taken, the newest last."""

    def __post_init__(self) -> None:
        self._forking: list[Parked] = []
        self._outdated = 0  # of the standbys, the oldest: they lack imports
        self._deaths = self._revivals = 0
        self._may_catch_up, self._is_short = True, False
        self._caught_up = ("", 0)  # with what a worker had imported: the file, and its size
        self._is_apart, self._weight = False, 0  # it cannot be forked; bytes of memory that it has
        self._process: Parked | None = None
        self._bound: asyncio.TimerHandle | None = None  # of what it is doing now

    def start(self) -> None:
        """Without one, after an OSError, workers import for themselves."""
        self.state, self._caught_up = "gone", ("", 0)
        if why := _why_no_tasks(self.wanted):
            raise OSError(errno.EAGAIN, why)
        self._process = self._new(self._on_announcement, lambda _: None)
        self._spawn(self._process)
        self.state = "importing"
        self._expect_within(IMPORT_BOUND, "imports take")

    def _spawn(self, process: Parked) -> None:
        around, told = self.around, {**self.told, "socket": 3 + len(self.around.inherited)}
        environ = {**self.environ, VARIABLE: json.dumps(told)}
        streams = around.pump.open_shown(PREFIX)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        ends = [nothing, streams[0].source.end, streams[-1].source.end]
        fds = (*ends, *around.inherited, process.end.fileno())
        try:
            around.keeper.spawn(process.worker_id, self.argv, environ, "", fds, parked=True)
        finally:
            process.end.close()
            for end in set(ends):
                os.close(end)

    @property
    def expects(self) -> bool:
        """Whether there is a standby, or one is to come."""
        is_to_come = self.state in ("importing", "forks") and not self._is_apart
        return bool(self.standbys) or is_to_come

    def take(
        self, environ: Mapping[str, str], cpus: Sequence[int], ends: Sequence[int]
    ) -> Parked | None:
        """Make a standby the worker with this environment, these processors if there are any, and
        these descriptors 0, 1, 2, ..; None if there is none that would be.
        """
        own = {name: text for name, text in environ.items() if self.environ.get(name) != text}
        while self.standbys:
            parked = self.standbys.pop()  # the newest have imported most
            self._outdated = min(self._outdated, len(self.standbys))
            if parked.send({"do": "take", "environ": own, "cpus": cpus}, ends):
                self._deaths = 0
                self.around.keeper.take(parked.worker_id)
                # One that somebody has stopped would be waited for by all other workers.
                self.around.keeper.signal(parked.worker_id, signal.SIGCONT, alone=True)
                self._forget(parked)
                self._process = None if parked is self._process else self._process
                return parked
            self._kill(parked)
        return None

    def fill(self) -> None:
        """See to it that there are as many as are wanted; one, if none can be forked."""
        missing = self.wanted - len(self.standbys) + self._outdated - len(self._forking)
        if missing <= 0:
            return
        if self.state == "separate" and self._process is None and self._has_room(1):
            self._replace()
        if self.state != "forks" or not self._has_room(missing):
            return
        if self.room and (why := _why_no_tasks(missing)):
            self._fail(why)  # it takes room itself
        while self.state == "forks" and self._process and missing > 0:
            self._fork(self._process)
            missing -= 1

    def _has_room(self, missing: int) -> bool:
        """Whether so many more leave enough to others; else no more are wanted."""
        was_short, room = self._is_short, self.room and max(self.room, self._weight)
        self._is_short = available_memory() < missing * room
        if self._is_short:
            self.wanted = len(self.standbys)
            if not was_short:
                self._complain(f"there is no memory left for {missing} more standbys")
        return not self._is_short

    def catch_up(self, recorded: str, size: int) -> None:
        """Import what a worker has since, unless that is done; the file of this size names it."""
        is_able = self._may_catch_up and self.state == "forks" and not self._forking
        if self._process is None or not is_able or self._caught_up == (recorded, size):
            return
        self.state, self._caught_up = "catching up", (recorded, size)
        self._expect_within(IMPORT_BOUND, "imports take")
        self._process.send({"do": "import", "recorded": recorded})

    def on_report(self, report: reports.Report) -> bool:
        """Whether it is about one of its processes."""
        known = {each.worker_id: each for each in self._all()}
        parked = known.get(getattr(report, "worker_id", -1))
        if parked is None:
            return False
        if isinstance(report, reports.Spawned):
            if parked is not self._process:
                self._on_owned(parked)
        elif parked is self._process:
            self._on_end(report)
        else:
            self._on_death(parked)
        return True

    def close(self) -> None:
        """Let go of all; those that are not workers end."""
        self._expect_nothing()
        self.state = "gone"
        for parked in self._all():
            self._forget(parked)
        self.standbys.clear()

    def _all(self) -> list[Parked]:
        process = [self._process] if self._process else []
        return [*process, *self._forking, *self.standbys]

    # ---- the importer itself

    def _on_announcement(self, process: Parked, facts: Mapping[str, Any]) -> None:
        if self.state not in ("importing", "catching up"):
            return
        self._expect_nothing()
        modules, reads = _names(facts.get("modules")), _texts(facts.get("reads"))
        for name, why in _texts(facts.get("failed")).items():
            self._complain(f"{name} cannot be imported ahead: {why}")
        why_not = str(facts.get("why_not_fork", ""))
        if reads:
            name, variable = next(iter(reads.items()))
            self._fail(f"{name} reads {variable} when it is imported")
        elif why_not and self.state == "importing":
            self._be_separate(process, why_not)
        elif why_not:
            self._fail(why_not)
        else:
            self._be_forked(modules)

    def _be_forked(self, modules: tuple[str, ...]) -> None:
        if self.state == "catching up" and len(modules) > len(self.modules):
            self._outdated = len(self.standbys)
        self.modules, self.state, self._is_apart = modules, "forks", False
        self.fill()

    def _be_separate(self, process: Parked, why: str) -> None:
        if not self._is_apart:
            self._complain(f"no process can be forked from the one that imports ahead, since {why}")
        self.state, self._is_apart = "separate", True
        stat = read_stat(process.pid)
        self._weight = stat.resident if stat else 0
        self.standbys.append(process)
        self.around.on_change()

    def _on_end(self, report: reports.Report) -> None:
        if self._process in self.standbys:
            self.standbys.remove(self._process)
        if self.state in ("forks", "separate") and self._revivals < MOST_REVIVALS:
            self._revivals += 1
            self._replace()
        else:
            status = getattr(report, "status", 0)
            how = f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
            self._fail(f"the process that does has ended ({how})")

    def _replace(self) -> None:
        """Begin anew with another process; standbys that are there stay."""
        self._let_go()
        try:
            self.start()
        except OSError as error:
            self._complain(f"workers import for themselves: {error.strerror}")
            self.around.on_change()

    def _fail(self, why: str) -> None:
        """Something went wrong with what it is doing."""
        if self.state == "gone":
            return
        if self.state == "catching up":  # what it was told at first can be had still
            self._complain(f"what workers have imported since is not imported ahead: {why}")
            self._may_catch_up = False
            self._replace()
            return
        self._complain(f"workers import for themselves: {why}")
        self.state = "gone"
        self._let_go()
        self.around.on_change()

    def _let_go(self) -> None:
        """Of the importer, and those that it has not quite forked."""
        self._expect_nothing()
        for parked in self._all():
            if parked not in self.standbys:
                self._kill(parked)

    # ---- its standbys

    def _fork(self, process: Parked) -> None:
        try:
            parked = self._new(self._on_hello, self._on_silence)
        except OSError as error:
            self._fail(f"{error.strerror}")
            return
        self._forking.append(parked)
        self._expect_within(FORK_BOUND, "a fork takes")
        if not process.send({"do": "fork"}, [parked.end.fileno()]):
            self._fail("the process that does hears nothing any more")
        parked.end.close()

    def _on_hello(self, parked: Parked, facts: Mapping[str, Any]) -> None:
        pid = facts.get("pid")
        if parked not in self._forking or parked.is_claimed:
            return
        if isinstance(pid, int) and 0 < pid < 1 << 31:
            parked.is_claimed = True
            self.around.keeper.own(parked.worker_id, pid, parked.pid)

    def _on_silence(self, parked: Parked) -> None:
        if not parked.is_claimed:  # else the keeper tells of its end
            self._on_death(parked)

    def _on_owned(self, parked: Parked) -> None:
        if parked not in self._forking:
            return
        self._forking.remove(parked)
        self._expect_forks()
        self.standbys.append(parked)
        if self._outdated:
            self._outdated -= 1
            self._kill(self.standbys.pop(0))
        self.around.on_change()

    def _on_death(self, parked: Parked) -> None:
        was_there = parked in self.standbys
        if was_there:
            self._outdated -= int(self.standbys.index(parked) < self._outdated)
            self.standbys.remove(parked)
        self._forget(parked)
        self._expect_forks()
        self._deaths += 1
        if self._deaths >= MOST_DEATHS + self.wanted:
            self._fail("standbys die as soon as they are forked")
        elif was_there:
            self.fill()
        else:  # a sweep may have met it on its way to the keeper, and would the next
            self.around.on_change()

    # ---- both

    def _new(
        self, hear: Callable[[Parked, Mapping[str, Any]], None], lose: Callable[[Parked], None]
    ) -> Parked:
        return Parked(self.around.new_id(), self.around.loop, hear, lose)

    def _expect_within(self, seconds: float, what: str) -> None:
        self._expect_nothing()
        why = f"{what} longer than {seconds:.0f} s"
        self._bound = self.around.loop.call_later(seconds, self._fail, why)

    def _expect_forks(self) -> None:
        """The next one, if any, has its own time."""
        if self._forking:
            self._expect_within(FORK_BOUND, "a fork takes")
        elif self.state == "forks":
            self._expect_nothing()

    def _expect_nothing(self) -> None:
        if self._bound:
            self._bound.cancel()

    def _kill(self, parked: Parked) -> None:
        self.around.keeper.signal(parked.worker_id, signal.SIGKILL, alone=True)
        self._forget(parked)

    def _forget(self, parked: Parked) -> None:
        if parked in self._forking:
            self._forking.remove(parked)
        parked.close()

    def _complain(self, why: str) -> None:
        self.around.complain(why)


def _why_no_tasks(standbys: int) -> str:
    """Why there is no room for so many; "" if there is."""
    left = available_tasks()
    is_enough = left >= standbys * TASKS
    return "" if is_enough else f"only {left} more processes and threads may be started"


def _names(told: object) -> tuple[str, ...]:
    return tuple(map(str, told)) if isinstance(told, list) else ()


def _texts(told: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in told.items()} if isinstance(told, dict) else {}
