"""Compares launchers.

    python benchmarks/launch.py --help

Measures the time from the command to the workers' first lines, the agent's peak memory, the time of
--help, and the time from a worker's SIGKILL until all workers print again; then how fast the
workers' output arrives. Rounds are interleaved, and medians count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import launch_bars, machine, output
from benchmarks.bars import Check
from benchmarks.launchers import (
    TORCHRUN,
    TORSHRUN,
    Attempts,
    Launcher,
    available,
    error_log,
    launchers,
)
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, run, started
from benchmarks.rounds import say
from benchmarks.session import positive, several
from benchmarks.table import MISSING, render

WORKERS = 2
_T = TypeVar("_T")
SCRIPT = """\
import os, sys, time
sys.stdout.write(f"READY pid={os.getpid()}\\n")
sys.stdout.flush()
time.sleep(float(sys.argv[1]))
"""
_READY = re.compile(rb"READY pid=(\d+)")
_LINGER, _RESTART_LINGER, _SETTLE = 0.3, 60.0, 0.5
PARTS = ("start", "output")
LAUNCHERS = tuple(launcher.name for launcher in launchers())


@dataclass(frozen=True, slots=True)
class Figures:
    """Holds the raw samples of one launcher, in milliseconds and MiB."""

    first_lines_ms: list[float] = field(default_factory=list)
    agent_peak_mib: list[float] = field(default_factory=list)
    help_ms: list[float] = field(default_factory=list)
    restart_ms: list[float] = field(default_factory=list)


TITLES = {
    "first_lines_ms": "first lines ms",
    "agent_peak_mib": "agent peak MiB",
    "help_ms": "--help ms",
    "restart_ms": "restart ms",
}


class Output:
    """Reads the lines of a running program, with the time of their arrival."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._descriptor = process.stdout.fileno()
        self._text = b""

    def ready(self, count: int, timeout: float) -> tuple[float, list[int]]:
        """Return when the count-th READY line arrived, and the process ids named so far."""
        deadline = time.monotonic() + timeout
        while len(_READY.findall(self._text)) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._descriptor], [], [], left)[0]:
                raise RunError(f"{count} workers not ready after {timeout:.0f} s: {self._tail()}")
            read = os.read(self._descriptor, 1 << 16)
            if not read:
                raise RunError(f"ended before {count} workers were ready: {self._tail()}")
            self._text += read
        return time.monotonic(), [int(pid) for pid in _READY.findall(self._text)]

    def _tail(self) -> str:
        return self._text[-500:].decode(errors="replace").strip() or "no output"


def launch(launcher: Launcher, folder: Path, timeout: float) -> tuple[float, float]:
    """Return the milliseconds until the last worker's first line, and the agent's own peak MiB."""
    program = _program(launcher, launcher.command(WORKERS), folder, _LINGER)
    with _logged(program, folder) as (process, lines, start):
        ready, _ = lines.ready(WORKERS, timeout)
        peak = _peak_mib(process, timeout)
    return (ready - start) * 1e3, peak


def restart(launcher: Launcher, folder: Path, timeout: float) -> float:
    """Return the milliseconds from SIGKILL of one worker until all workers have printed again."""
    command = launcher.command(WORKERS, "--max-restarts", "3")
    program = _program(launcher, command, folder, _RESTART_LINGER)
    with _logged(program, folder) as (_, lines, _start):
        _, pids = lines.ready(WORKERS, timeout)
        time.sleep(_SETTLE)
        killed = time.monotonic()
        os.kill(pids[-1], signal.SIGKILL)
        again, _ = lines.ready(2 * WORKERS, timeout)
    return (again - killed) * 1e3


def help_time(launcher: Launcher, folder: Path, timeout: float) -> float:
    """Return the milliseconds of the launcher's --help."""
    start = time.monotonic()
    run(Program((*launcher.start, "--help"), folder, launcher.env), timeout)
    return (time.monotonic() - start) * 1e3


def _program(launcher: Launcher, command: Sequence[str], folder: Path, linger: float) -> Program:
    script = folder / "ready.py"
    script.write_text(SCRIPT)
    env = launcher.env | {"TMPDIR": str(folder)}
    return Program([*command, str(script), str(linger)], folder, env)


@contextlib.contextmanager
def _logged(
    program: Program, folder: Path
) -> Iterator[tuple[subprocess.Popen[str], Output, float]]:
    """Start a program; yield it, its output and the time of its start. Errors show its stderr."""
    with error_log(folder) as errors:
        start = time.monotonic()
        with started(program, stdout=subprocess.PIPE, stderr=errors) as process:
            yield process, Output(process), start


def _peak_mib(process: subprocess.Popen[str], timeout: float) -> float:
    """Return the largest resident set of the agent itself, read until it ends."""
    peak, deadline = 0.0, time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            peak = output.peak_mib(process.pid) or peak
        time.sleep(0.005)
    return peak


class StartBenchmark:
    """Collects figures of every launcher."""

    def __init__(self, contenders: Sequence[Launcher], timeout: float) -> None:
        self._contenders, self._timeout = contenders, timeout
        self.figures = {launcher.name: Figures() for launcher in contenders}

    def round(self, attempts: Attempts, keep: bool) -> None:
        """Do each measurement once for each launcher. The first round only warms up."""
        for launcher in self._contenders:
            figures = self.figures[launcher.name] if keep else Figures()
            both = self._take(attempts, launcher, launch)
            if both:
                figures.first_lines_ms.append(both[0])
                figures.agent_peak_mib.append(both[1])
            if launcher.start:
                self._add(figures.help_ms, self._take(attempts, launcher, help_time))
                self._add(figures.restart_ms, self._take(attempts, launcher, restart))

    def _take(
        self, attempts: Attempts, launcher: Launcher, measure: Callable[[Launcher, Path, float], _T]
    ) -> _T | None:
        what = f"{launcher.name}, {measure.__name__}"
        return attempts.take(what, lambda folder: measure(launcher, folder, self._timeout))

    @staticmethod
    def _add(figures: list[float], value: float | None) -> None:
        if value is not None:
            figures.append(value)


def report(figures: Mapping[str, Figures]) -> str:
    """Return a table of each launcher's medians, with their ratios to torchrun's."""
    header = ["launcher"]
    for title in TITLES.values():
        header += [title, "/torchrun"]
    return render(header, [_line(name, figures) for name in figures])


def _line(name: str, figures: Mapping[str, Figures]) -> list[str]:
    cells = [name]
    for field_name in TITLES:
        mine = median_of(figures, name, field_name)
        base = median_of(figures, TORCHRUN, field_name)
        cells.append(MISSING if mine is None else f"{mine:.1f}")
        cells.append(MISSING if mine is None or base is None else f"{mine / base:.3f}")
    return cells


def median_of(figures: Mapping[str, Figures], name: str, field_name: str) -> float | None:
    """Return the median of one launcher's samples; None if it has none."""
    values = getattr(figures[name], field_name) if name in figures else []
    return statistics.median(values) if values else None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--parts", type=_parts, default=PARTS, help="default: start,output")
    add("--launchers", type=_launchers, default=LAUNCHERS, help=f"default: {','.join(LAUNCHERS)}")
    add("--rounds", type=positive, default=5, help="interleaved rounds of start; default: 5")
    add("--output-rounds", type=positive, default=3, help="the same of output; default: 3")
    add("--mib", type=positive, default=128, help="output of one run; default: 128")
    add("--timeout", type=float, default=60.0, help="seconds for one measurement")
    add("--json", type=Path, metavar="FILE", help="write all samples")
    add("--quick", action="store_true", help="little, in one round: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.output_rounds, options.mib = 1, 1, 4
    return options


def _parts(text: str) -> tuple[str, ...]:
    return several(text, PARTS)


def _launchers(text: str) -> tuple[str, ...]:
    return several(text, LAUNCHERS)


class Session:
    """Holds everything that one call of this benchmark measures."""

    def __init__(self, options: argparse.Namespace, contenders: Sequence[Launcher]) -> None:
        self._options = options
        self.attempts = Attempts()
        self.start = StartBenchmark(contenders, options.timeout)
        self.output = output.OutputBenchmark(contenders, options.mib * 2**20, options.timeout)

    def measure(self) -> None:
        """Run all rounds of the requested parts."""
        if "start" in self._options.parts:
            for number in range(self._options.rounds + 1):
                say(f"start: round {number} of {self._options.rounds}")
                self.start.round(self.attempts, keep=number > 0)
        if "output" in self._options.parts:
            for number in range(self._options.output_rounds):
                say(f"output: round {number + 1} of {self._options.output_rounds}")
                self.output.round(self.attempts)

    def report(self) -> None:
        """Print tables of all measurements."""
        if "start" in self._options.parts:
            print(f"\n{WORKERS} workers, medians of {self._options.rounds} interleaved rounds")
            print(report(self.start.figures))
        if "output" in self._options.parts:
            rounds = f"medians of {self._options.output_rounds} interleaved rounds"
            print(f"\n{output.WORKERS} workers write {self._options.mib} MiB, {rounds}")
            print(output.report(self.output.samples))

    def checks(self) -> list[Check]:
        """Return the checks of the requested parts."""
        found = []
        if "start" in self._options.parts:
            found += launch_bars.of_start(
                median_of(self.start.figures, TORSHRUN, "first_lines_ms"),
                median_of(self.start.figures, TORCHRUN, "first_lines_ms"),
                median_of(self.start.figures, TORSHRUN, "help_ms"),
            )
        if "output" in self._options.parts:
            found += launch_bars.of_output(self.output.samples)
        return found

    def samples(self) -> dict[str, object]:
        """Return every figure, for a JSON file."""
        start = {name: asdict(figures) for name, figures in self.start.figures.items()}
        taken = self.output.samples.items()
        carried = {", ".join(key): [asdict(sample) for sample in samples] for key, samples in taken}
        return {"start": start, "output": carried, "failures": self.attempts.failures}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    facts = machine.describe()
    contenders, versions = available(options.launchers)
    session, interrupted = Session(options, contenders), False
    try:
        session.measure()
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted; what follows is what was measured until then")
    print(f"versions: {versions}")
    session.report()
    failed = bool(session.attempts.failures)
    if options.bars:
        checks = session.checks()
        print("\n" + "\n".join(map(str, checks)))
        failed |= not all(check.passed for check in checks)
    if options.json:
        record = {"machine": facts, "versions": versions, **session.samples()}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return INTERRUPTED if interrupted else 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
