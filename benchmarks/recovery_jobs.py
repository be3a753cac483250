"""Runs trainings of `benchmarks/recovery.py`, kills their workers, and reads what they print."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.processes import Program, RunError, started

_START = re.compile(r"start (\d+) (\d+) (\S+)\n")
_COMMIT = re.compile(r"commit (\d+) (\S+)\n")
SETTLE = 3.0
"""Seconds of steps before each kill, in which standbys are made."""
FIRST = 5
"""Number of steps before the time of a step is taken."""
PATIENCE = 180.0
"""Seconds that a training may take to start, and to go on after a kill."""


class Start(NamedTuple):
    """A process that is ready to meet the others, and the seconds that its script took before."""

    rank: int
    pid: int
    lead: float


class Figures(NamedTuple):
    """Holds what was measured of a training whose workers were killed, in seconds."""

    waits: Sequence[float]
    """Seconds from each kill until all ranks had committed a step again."""
    nets: Sequence[float]
    """Seconds likewise, without one step, and without what the replacement's script took before
    it was ready to meet the others."""
    holds: Sequence[float]
    """Seconds more than a step that it took around each kill until any rank committed one."""
    step: float


class Training:
    """Represents a job whose output is in a file, as far as it has come.

    It may consist of several commands. Leaving its block ends all of their processes.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        """Prepare to write the output to this folder."""
        self._out, self._errors, self._workers = folder / "out", folder / "err", workers
        self._out.touch()
        self._held = ExitStack()
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, commands: Iterable[Sequence[str]], environ: Mapping[str, str]) -> Self:
        """Start the commands, each in this environment beside this process's own."""
        with self._out.open("a") as out, self._errors.open("a") as errors:
            for command in commands:
                program = Program(command, self._out.parent, {"OMP_NUM_THREADS": "1", **environ})
                job = started(program, stdout=out.fileno(), stderr=errors.fileno())
                self._processes.append(self._held.enter_context(job))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    @property
    def pid(self) -> int:
        """Return the pid of the first command's process."""
        return self._processes[0].pid

    def said(self) -> str:
        """Return all that the job has written so far."""
        return self._errors.read_text() + self._out.read_text()

    def starts(self) -> list[Start]:
        found = _START.findall(self._out.read_text())
        return [Start(int(rank), int(pid), float(lead)) for rank, pid, lead in found]

    def commits(self, starts: int = 0) -> dict[int, list[float]]:
        """Return when ranks committed each step after so many processes have started."""
        text = self._out.read_text()
        ends = [0, *(each.end() for each in _START.finditer(text))]
        commits: dict[int, list[float]] = {}
        for step, at in _COMMIT.findall(text, ends[starts]) if starts < len(ends) else ():
            commits.setdefault(int(step), []).append(float(at))
        return commits

    def complete(self, starts: int = 0) -> list[float]:
        """Return when each step that all ranks have committed after so many starts was complete."""
        commits = self.commits(starts).values()
        return sorted(max(each) for each in commits if len(each) >= self._workers)

    def wait(self, what: str, starts: int, steps: int = 1) -> None:
        """Wait until all ranks have committed as many steps after so many processes have started.

        Raises RunError if they do not come in time, or one of the job's commands has ended.
        """
        deadline = time.monotonic() + PATIENCE
        while len(self.complete(starts)) < steps:
            has_ended = any(each.poll() is not None for each in self._processes)
            if has_ended or time.monotonic() > deadline:
                why = "the job has ended" if has_ended else f"not within {PATIENCE:g} s"
                raise RunError(f"no {what}, {why}: {self._errors.read_text().strip()[-2000:]}")
            time.sleep(0.05)

    def step(self) -> float:
        """Return the median seconds of a step."""
        times = self.complete()
        return statistics.median(b - a for a, b in itertools.pairwise(times))

    def hold(self, since: float, until: float) -> float:
        """Return the longest time without a commit of any rank that ends in this time."""
        times = sorted(at for each in self.commits().values() for at in each)
        gaps = ((b - a, b) for a, b in itertools.pairwise(times))
        return max(gap for gap, end in gaps if since < end <= until)


def losses(training: Training, workers: int, kills: int, restarts: int = 1) -> Figures:
    """Kill workers of a training at random moments, and return what that costs.

    restarts: the number of processes that are started after each kill.
    """
    waits, nets, holds = [], [], []
    training.wait("steps", workers, steps=FIRST)
    time.sleep(SETTLE)
    step = training.step()
    for _ in range(kills):
        time.sleep(SETTLE + random.random() * step)
        before = training.starts()
        present = {each.rank: each.pid for each in before}
        killed = time.monotonic()
        os.kill(random.choice([*present.values()]), signal.SIGKILL)
        training.wait("step after a kill", len(before) + restarts)
        again = min(training.complete(len(before) + restarts))
        lead = max(each.lead for each in training.starts()[-restarts:])
        waits.append(again - killed)
        nets.append(again - killed - step - lead)
        holds.append(training.hold(killed, again) - step)
    return Figures(waits, nets, holds, step)
