"""Processes that have imported what workers need, and wait to be workers: docs/standbys.md."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torsh_runtime.contract import ALL_VARIABLES, WorkerEnv
from torsh_runtime.transitions import Machine
from torshrun.config.job import LaunchConfig
from torshrun.workers.keeper import Report
from torshrun.workers.spec import SLURM_PLACE, Assignment, WorkerSpec
from torshrun.workers.standby_process import StandbyProcess
from torshrun.workers.zygote import Zygote, ZygoteServices

AHEAD = 1.0
"""Seconds after a start before standbys for the next one are made: workers that start need the
processors."""
ROOM = 64 << 20
"""Bytes of memory that must be left for each standby: what it will not share with others."""
IMPORTS = "TORSH_IMPORTS"
"""Variable that names the file in which a worker is to note its imports."""


class Standbys:
    """Manages this node's standbys: some for each kind of worker, from a zygote of their own."""

    def __init__(
        self,
        config: LaunchConfig,
        spec: WorkerSpec,
        on_ready: Callable[[int, Sequence[str]], None],
        around: ZygoteServices,
    ) -> None:
        """Create the zygotes.

        `on_ready` is called with how many standbys wait for a restart, and what they have imported.
        """
        self._loop, self._take_id = around.loop, around.new_id
        self._ids: set[int] = set()
        around = replace(around, new_id=self._new_id)
        kinds: dict[object, Zygote] = {}
        told = {
            "kind": config.kind,
            "target": config.target,
            "modules": config.preload,
            "keeper": 1 if config.pid_namespace else around.keeper.pid,
        }
        self._zygotes = [
            kinds.setdefault(_kind(spec, rank), _zygote(spec, rank, told, around))
            for rank in range(config.nproc_per_node)
        ]
        """By local rank."""
        may_restart = config.max_restarts > 0 or not config.is_alone
        asked = config.nproc_per_node if config.standbys == "auto" else config.standbys
        self._ahead = Counter(self._zygotes[:asked] if may_restart else [])
        self._records = may_restart and config.preload == "auto"
        self._recorded, self._size = "", 0
        self._timer: asyncio.TimerHandle | None = None
        self._on_ready = on_ready
        self._is_prepared = self._is_told = False
        self._seen = Machine("standbys", "none")

    @property
    def count(self) -> int:
        """Return how many standbys wait."""
        return sum(len(each.state.standbys) for each in set(self._zygotes))

    def start(self) -> None:
        """Begin to import, and to fork as many as there are workers. Raises OSError."""
        self._seen.become("importing")
        for zygote, workers in Counter(self._zygotes).items():
            zygote.start(workers)

    def variables(self, place: WorkerEnv) -> Mapping[str, str]:
        """Return variables that make a worker record its imports, to learn what to import ahead."""
        if place.local_rank or not self._records:
            return {}
        self._recorded, self._size = f"{place.scratch}/imports_{place.round}", 0
        return {IMPORTS: self._recorded}

    def expects(self, assignment: Assignment) -> bool:
        """Return whether a standby exists, or will, that could become this worker."""
        return self._zygotes[assignment.worker.local_rank].state.expects

    def take(
        self, assignment: Assignment, environ: Mapping[str, str], ends: Sequence[int]
    ) -> StandbyProcess | None:
        """Make one this worker, with the descriptors 0, 1, 2, ..; None if there is none now."""
        zygote = self._zygotes[assignment.worker.local_rank]
        parked = zygote.take(environ, sorted(assignment.cpus), ends)
        if parked:
            self._ids.discard(parked.worker_id)
            self._is_prepared = self._is_told = False
            self._seen.become("taken", f"{self.count} wait")
        return parked

    def want(self, pending: Sequence[Assignment]) -> None:
        """Provide standbys for workers that begin at once.

        Without any, prepare the next start a moment later.
        """
        if pending:
            self._stop_timer()
            self._is_prepared = False
            self._fill(Counter(self._zygotes[each.worker.local_rank] for each in pending), 0)
        elif self._is_prepared:
            self._prepare()
        elif self._timer is None:
            self._timer = self._loop.call_later(AHEAD, self._prepare)

    def pause(self) -> None:
        """Fork no process until the next want(): a sweep would kill those being forked."""
        self._stop_timer()
        self._is_prepared = False
        self._seen.become("paused")

    def tick(self) -> None:
        """Import what workers have imported by now. To be called every second or so."""
        size = _size(self._recorded)
        if size and size == self._size:  # no more for the moment
            for zygote in set(self._zygotes):
                zygote.catch_up(self._recorded, size)
        self._size = size

    def on_report(self, report: Report) -> bool:
        """Handle a report, and return whether it is about a process that is not a worker."""
        number = getattr(report, "worker_id", None)
        if number not in self._ids:
            return False
        for zygote in set(self._zygotes):
            zygote.on_report(report)
        return True

    def close(self) -> None:
        """End the processes that have not become workers."""
        self._stop_timer()
        self._seen.become("closed")
        for zygote in set(self._zygotes):
            zygote.close()

    def _prepare(self) -> None:
        self._timer, self._is_prepared = None, True
        self._seen.become("preparing", f"{self._ahead.total()} for the next start")
        self._fill(self._ahead, ROOM)
        self._tell_ready()

    def _fill(self, wanted: Counter[Zygote], room: int) -> None:
        """Provide the wanted standbys, if each that is made ahead leaves `room` bytes of memory.

        There is no such check for workers that begin now: one that is not forked takes more memory.
        """
        for zygote in set(self._zygotes):
            zygote.fill(wanted[zygote], room)

    def _tell_ready(self) -> None:
        if not self._is_told and 0 < self._ahead.total() <= self.count:
            self._is_told = True
            self._seen.become("ready", f"{self.count} wait")
            modules = (name for each in dict.fromkeys(self._zygotes) for name in each.state.modules)
            self._on_ready(self.count, tuple(dict.fromkeys(modules)))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _new_id(self) -> int:
        number = self._take_id()
        self._ids.add(number)
        return number


def why_none(config: LaunchConfig, spec: WorkerSpec) -> str:
    """Return why there can be no standbys; "" if there can."""
    if config.kind == "program":
        return "there are none of a program (--no-python)"
    interpreter = Path(spec.argv[0])
    try:
        with interpreter.open("rb") as file:
            is_binary = file.read(4) == b"\x7fELF"
    except OSError:
        is_binary = False
    is_binary = is_binary and interpreter.resolve().name.startswith(("python", "pypy"))
    # A wrapper may call Python so that it ignores our hook: the script would run at once.
    return (
        "" if is_binary else f"{interpreter} is no interpreter itself, but something that calls one"
    )


def _kind(spec: WorkerSpec, local_rank: int) -> object:
    """Return what workers have in common that can be forked from the same process."""
    return spec.command(local_rank), tuple(sorted(spec.own_environ[local_rank].items()))


def _zygote(
    spec: WorkerSpec, local_rank: int, told: Mapping[str, object], around: ZygoteServices
) -> Zygote:
    own = spec.own_environ[local_rank]
    place = [name for name in (*ALL_VARIABLES, *SLURM_PLACE) if name not in own]
    inherited = {name: value for name, value in spec.environ.items() if name not in place}
    return Zygote(
        argv=spec.command(local_rank),
        environ={**inherited, **own},
        told={**told, "place_variables": place},
        around=around,
        shares_session=spec.shares_session,
    )


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size if path else 0
    except OSError:
        return 0
