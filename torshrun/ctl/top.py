"""Implements torshctl top: shows live in the terminal how the ranks of jobs spend their time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from torsh_runtime.errors import TorshError
from torshrun.ctl.host_jobs import HostJob, HostWorker, find_jobs
from torshrun.ctl.places import Asking
from torshrun.ctl.recorded import Recorded, find, of_job
from torshrun.ctl.top_lines import SORTS, Shape, lines
from torshrun.ctl.top_view import Sample, Usage, view
from torshrun.procfs import read_stat

if TYPE_CHECKING:
    from torshrun.ctl.terminal import Terminal

WINDOW_SECONDS = 5.0
"""Length of the window, in seconds, over which shares and rates are taken."""
_FIRST_LOOK = 0.25
"""Seconds between the two samples that processors' usage needs in one picture."""
_WIDE = 100
"""Columns of a picture that is not printed on a terminal."""
_MOST_LINES = 10_000
_MOST_GONE = 8
"""The most jobs that have ended whose last picture is kept."""
_IDLE_SECONDS = 3600.0
_STEP_SECONDS = 1.0
"""Seconds that an arrow key moves in time."""
_KEYS = "q quit  s sort: {sort}  p pause  \N{LEFTWARDS ARROW} \N{RIGHTWARDS ARROW} time"

Ask = Callable[[], Sequence[Recorded]]
"""A function that returns what is known of a run at this moment."""


class Jobs:
    """Samples jobs repeatedly. A job that is gone keeps its last sample."""

    def __init__(self, place: str | None, ask: Ask | None = None) -> None:
        """Take the first sample.

        `place` is a directory, the pid of a torshrun, or None for all jobs of this host. If `ask`
        is given, it returns the run instead. Raises Unfit if there is nothing.
        """
        self._place = place
        self._ask = ask
        self._is_of_host = ask is None and (place is None or place.isdecimal())
        self._cpu: dict[int, tuple[float, float]] = {}
        self.samples: list[Sample] = []
        self._look_first()

    def _look_first(self) -> None:
        if self._ask is not None:
            self.samples = [*map(Sample, self._ask())]
            return
        if self._is_of_host:
            self._look_at_host()
        if not self.samples:
            is_kept = not self._is_of_host
            self.samples = [Sample(each, has_ended=is_kept) for each in find(self._place)]

    def look(self) -> None:
        """Take new samples of the jobs."""
        if self._is_of_host:
            self._look_at_host()
        elif self._ask is not None:
            try:
                self.samples = [*map(Sample, self._ask())]
            except TorshError:  # the run is gone, or none of its agents answers
                self.samples = [each._replace(has_ended=True) for each in self.samples]

    @property
    def is_live(self) -> bool:
        """Return whether any sample may still change."""
        return self._place is None or not all(each.has_ended for each in self.samples)

    def _look_at_host(self) -> None:
        jobs = [job for job in find_jobs() if self._place in (None, str(job.agent))]
        now = [Sample(of_job(job), self._usage_of(job)) for job in jobs if job.workers]
        names = {each.recorded.name for each in now}
        agents = tuple(
            f"pid {job.agent}:" for job in jobs
        )  # also those between two rounds, without workers
        gone = [
            each._replace(has_ended=not each.recorded.name.startswith(agents))
            for each in self.samples
            if each.recorded.name not in names
        ]
        self.samples = [*now, *gone[-_MOST_GONE:]]

    def _usage_of(self, job: HostJob) -> dict[int, Usage]:
        before, self._cpu = self._cpu, {}
        return {worker.rank: self._usage(worker, before) for worker in job.workers}

    def _usage(self, worker: HostWorker, before: Mapping[int, tuple[float, float]]) -> Usage:
        stat, now = read_stat(worker.pid), time.monotonic()
        if stat is None:
            return Usage()
        self._cpu[worker.pid] = stat.cpu, now
        used, since = before.get(worker.pid, (stat.cpu, now))
        cpu = max(stat.cpu - used, 0.0) / (now - since) if now > since else None
        return Usage(cpu, stat.resident, stat.state, worker.waits)


class State(NamedTuple):
    """Holds what the user has selected so far."""

    job: int = 0
    """The index of the job that is shown."""
    sort: str = "rank"
    at: float = 0.0
    """Seconds from the last moment that is known: 0 or less."""
    is_paused: bool = False
    quits: bool = False


def press(state: State, key: str) -> State:
    """Return the state after a key. Keys other than those of _KEYS change nothing."""
    if key == "q":
        return state._replace(quits=True)
    if key == "s":
        orders = [*SORTS]
        return state._replace(sort=orders[(orders.index(state.sort) + 1) % len(orders)])
    if key == "p":
        return state._replace(is_paused=not state.is_paused, at=min(state.at, 0.0))
    if key == "n":
        return state._replace(job=state.job + 1)
    if key in ("left", "right"):
        moved = state.at + (_STEP_SECONDS if key == "right" else -_STEP_SECONDS)
        return state._replace(at=min(moved, 0.0), is_paused=True)
    return state


def show(place: str | None, at: float, interval: float, asking: Asking, *, once: bool) -> int:
    """Show the jobs until the user quits, or once if stdout is no terminal.

    Returns the exit code.
    """
    is_run = place is not None and asking.is_run(place)
    jobs = Jobs(place, partial(find, place, asking) if is_run else None)
    if once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        _print(jobs, at, min(interval, _FIRST_LOOK))
        return 0
    from torshrun.ctl.terminal import Ended, Terminal

    try:
        with Terminal() as terminal:
            _watch(jobs, State(at=at), interval, terminal)
    except Ended as ended:
        return 128 + ended.signo
    except EOFError:  # the terminal is gone
        return 128 + signal.SIGHUP
    return 0


def _print(jobs: Jobs, at: float, pause: float) -> None:
    if any(each.usage for each in jobs.samples):
        time.sleep(pause)  # processors' usage needs two samples
        jobs.look()
    is_terminal = sys.stdout.isatty()
    columns = os.get_terminal_size().columns if is_terminal else 0
    shape = Shape(columns or _WIDE, _MOST_LINES, color=is_terminal and _has_color())
    pictures = (lines(view(each, at, WINDOW_SECONDS), shape) for each in jobs.samples)
    click.echo("\n\n".join("\n".join(picture) for picture in pictures))


def _watch(jobs: Jobs, state: State, interval: float, terminal: Terminal) -> None:
    due = time.monotonic() + min(interval, _FIRST_LOOK)
    while not state.quits:
        moves = jobs.is_live and not state.is_paused
        if moves and time.monotonic() >= due:
            jobs.look()
            due = time.monotonic() + interval
        terminal.show(_picture(jobs.samples, state, terminal.size()))
        for key in terminal.wait(due - time.monotonic() if moves else _IDLE_SECONDS):
            state = press(state, key)


def _picture(samples: Sequence[Sample], state: State, size: tuple[int, int]) -> list[str]:
    count, place = len(samples), state.job % len(samples)
    told = [f"job {place + 1} of {count}"] if count > 1 else []
    told += ["paused"] if state.is_paused else []
    keys = _KEYS.format(sort=state.sort) + ("  n next job" if count > 1 else "")
    shape = Shape(*size, color=_has_color(), sort=state.sort, keys=keys, note=", ".join(told))
    return lines(view(samples[place], state.at, WINDOW_SECONDS), shape)


def _has_color() -> bool:
    return not os.environ.get("NO_COLOR")
