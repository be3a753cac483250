"""One process that imports ahead, and the standbys that are forked from it.

All workers that have their command and variables in common, but for their places, come from one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torshrun.topology.memory import available_memory
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
ROOM = 64 << 20
"""Bytes of memory that must be left for each standby: what it will not share with others."""
VARIABLE = "TORSH_PARK"
"""Tells a process that it is to wait, and how: startup/torsh_standby.py."""
PREFIX = "[preload] "
"""Stands before what modules write while they are imported."""

State = Literal["importing", "forks", "separate", "gone"]
"""separate: it cannot be forked, and so is a standby itself."""


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
    state: State = "importing"
    modules: tuple[str, ...] = ()
    """What it has imported of what it was told."""
    standbys: list[Parked] = field(default_factory=list)
    """Those that can be taken, the newest last."""

    def __post_init__(self) -> None:
        self._forking: dict[Parked, asyncio.TimerHandle] = {}
        self._outdated = 0  # of the standbys, the oldest: they lack imports
        self._deaths = self._revivals = 0

    def start(self) -> None:
        """Raises OSError."""
        self.state = "importing"
        self._bound = self._deadline(IMPORT_BOUND, "imports take")
        self._process = self._new(self._on_announcement)
        around, told = self.around, {**self.told, "socket": 3 + len(self.around.inherited)}
        environ = {**self.environ, VARIABLE: json.dumps(told)}
        streams = around.pump.open_shown(PREFIX)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        ends = [nothing, *(stream.source.end for stream in streams)]
        fds = (*ends, *around.inherited, self._process.end.fileno())
        try:
            worker_id = self._process.worker_id
            around.keeper.spawn(worker_id, self.argv, environ, "", fds, parked=True)
        finally:
            self._process.end.close()
            for end in ends:
                os.close(end)

    @property
    def expects(self) -> bool:
        """Whether there is a standby, or one is to come."""
        return bool(self.standbys) or self.state in ("importing", "forks")

    def take(self, facts: Mapping[str, Any], ends: Sequence[int]) -> Parked | None:
        """Make a standby the worker that `facts` describe, with these descriptors 0, 1, 2, ..;
        None if there is none that would be.
        """
        while self.standbys:
            parked = self.standbys.pop()  # the newest have imported most
            self._outdated = min(self._outdated, len(self.standbys))
            if parked.send({"do": "take", **facts}, ends):
                self._deaths = 0
                self.around.keeper.take(parked.worker_id)
                self._forget(parked)
                return parked
            self._kill(parked)
        return None

    def fill(self) -> None:
        """See to it that there are as many as are wanted."""
        missing = self.wanted - len(self.standbys) + self._outdated - len(self._forking)
        if self.state != "forks" or missing <= 0:
            return
        if available_memory() < missing * ROOM:
            self.wanted = len(self.standbys)
            self._complain(f"there is no memory left for {missing} more standbys")
            return
        for _ in range(missing):
            self._fork()

    def catch_up(self, recorded: str) -> None:
        """Import what a worker has since; the file names it."""
        if self.state == "forks":
            self._process.send({"do": "import", "recorded": recorded})

    def on_report(self, report: reports.Report) -> bool:
        """Whether it is about one of its processes."""
        known = {each.worker_id: each for each in (self._process, *self._forking, *self.standbys)}
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
        self._bound.cancel()
        self.state = "gone"
        for parked in (self._process, *self._forking, *self.standbys):
            self._forget(parked)
        self.standbys.clear()

    # ---- the importer itself

    def _on_announcement(self, _: Parked, facts: Mapping[str, Any]) -> None:
        if self.state not in ("importing", "forks"):
            return
        self._bound.cancel()
        modules, reads = _names(facts.get("modules")), _texts(facts.get("reads"))
        for name, why in _texts(facts.get("failed")).items():
            self._complain(f"{name} cannot be imported ahead: {why}")
        if reads:
            name, variable = next(iter(reads.items()))
            self._fail(f"{name} reads {variable} when it is imported")
            return
        if self.state == "forks" and len(modules) > len(self.modules):
            self._outdated = len(self.standbys)
        self.modules = modules
        why_not = facts.get("why_not_fork")
        if why_not:
            self._be_separate(str(why_not))
        else:
            self.state = "forks"
            self.fill()

    def _be_separate(self, why: str) -> None:
        self._complain(f"no process can be forked from the one that imports ahead, since {why}")
        if self.state == "importing":
            self.state = "separate"
            self.standbys.append(self._process)
        self.around.on_change()

    def _on_end(self, report: reports.Report) -> None:
        if self._process in self.standbys:
            self.standbys.remove(self._process)
        if self.state == "forks" and self._revivals < MOST_REVIVALS:
            self._revivals += 1
            self._revive()
        elif self.state != "gone":
            status = getattr(report, "status", 0)
            how = f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
            self._fail(f"the process that does has ended ({how})")

    def _revive(self) -> None:
        for parked in [*self._forking]:
            self._forget(parked)
        try:
            self.start()
        except OSError as error:
            self._fail(f"the process that does cannot be started again: {error.strerror}")

    def _fail(self, why: str) -> None:
        if self.state == "gone":
            return
        self._complain(f"workers import for themselves: {why}")
        self.state = "gone"
        self._kill(self._process)
        for parked in [*self._forking]:
            self._kill(parked)
        self.around.on_change()

    # ---- its standbys

    def _fork(self) -> None:
        try:
            parked = self._new(self._on_hello)
        except OSError as error:
            self._complain(f"no more standbys: {error.strerror}")
            self.wanted = 0
            return
        self._forking[parked] = self._deadline(FORK_BOUND, "a fork takes")
        if not self._process.send({"do": "fork"}, [parked.end.fileno()]):
            self._fail("the process that does hears nothing any more")
        parked.end.close()

    def _on_hello(self, parked: Parked, facts: Mapping[str, Any]) -> None:
        pid = facts.get("pid")
        if parked in self._forking and isinstance(pid, int) and 0 < pid < 1 << 31:
            self.around.keeper.own(parked.worker_id, pid, parked.pid)

    def _on_owned(self, parked: Parked) -> None:
        if parked not in self._forking:
            return
        self._forking.pop(parked).cancel()
        self.standbys.append(parked)
        if self._outdated:
            self._outdated -= 1
            self._kill(self.standbys.pop(0))
        self.around.on_change()

    def _on_death(self, parked: Parked) -> None:
        if parked in self.standbys:
            self._outdated -= int(self.standbys.index(parked) < self._outdated)
            self.standbys.remove(parked)
        self._forget(parked)
        self._deaths += 1
        if self._deaths >= MOST_DEATHS + self.wanted:
            self._fail("standbys die as soon as they are forked")
        else:
            self.fill()

    # ---- both

    def _new(self, hear: Callable[[Parked, Mapping[str, Any]], None]) -> Parked:
        return Parked(self.around.new_id(), self.around.loop, hear)

    def _deadline(self, seconds: float, what: str) -> asyncio.TimerHandle:
        return self.around.loop.call_later(
            seconds, self._fail, f"{what} longer than {seconds:.0f} s"
        )

    def _kill(self, parked: Parked) -> None:
        self.around.keeper.signal(parked.worker_id, signal.SIGKILL, alone=True)
        self._forget(parked)

    def _forget(self, parked: Parked) -> None:
        if timer := self._forking.pop(parked, None):
            timer.cancel()
        parked.close()

    def _complain(self, why: str) -> None:
        self.around.complain(why)


def _names(told: object) -> tuple[str, ...]:
    return tuple(map(str, told)) if isinstance(told, list) else ()


def _texts(told: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in told.items()} if isinstance(told, dict) else {}
