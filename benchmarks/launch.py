"""Launchers side by side: `python benchmarks/launch.py --help`.

Time from the command to the workers' first lines, the agent's peak memory, the time of --help, and
the time from a worker's SIGKILL until all workers print again; interleaved rounds, medians.
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
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import machine
from benchmarks.peers import GLOO, MPICH, OPENMPI, OURS, Peer, UnavailableError, prepare
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, run, started
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
# Installed packages are compiled to bytecode once: a setting against that must not slow anyone.
_ENV = {"PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How one launcher is called; a figure that it does not have is left out."""

    name: str
    peer: Peer
    command: tuple[str, ...]
    """Up to the script."""
    help: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    """Up to the script, with restarts allowed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Raw samples of one launcher: milliseconds and MiB."""

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


def launchers() -> list[Launcher]:
    count = str(WORKERS)
    torshrun = (OURS.python, "-m", "torshrun")
    torchrun = (str(GLOO.bin / "torchrun"),)
    found = [
        Launcher(
            name=name,
            peer=peer,
            command=(*start, "--nproc-per-node", count),
            help=(*start, "--help"),
            restart=(*start, "--max-restarts", "3", "--nproc-per-node", count),
        )
        for name, peer, start in (("torshrun", OURS, torshrun), ("torchrun", GLOO, torchrun))
    ]
    for peer in (MPICH, OPENMPI):
        command = tuple(peer.command(WORKERS, WORKERS, []))
        found.append(Launcher(name=f"mpiexec ({peer.name})", peer=peer, command=command))
    return found


class Output:
    """The lines of a running program, each with the moment of its arrival."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._descriptor = process.stdout.fileno()
        self._text = b""

    def ready(self, count: int, timeout: float) -> tuple[float, list[int]]:
        """When the count-th READY line arrived, and the process ids named so far."""
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
    """Milliseconds until the last worker's first line, and the agent's own peak MiB."""
    program = _program(launcher, launcher.command, folder, _LINGER)
    with _logged(program, folder) as (process, output, start):
        ready, _ = output.ready(WORKERS, timeout)
        peak = _peak_mib(process, timeout)
    return (ready - start) * 1e3, peak


def restart(launcher: Launcher, folder: Path, timeout: float) -> float:
    """Milliseconds from SIGKILL of one worker until all workers have printed again."""
    program = _program(launcher, launcher.restart, folder, _RESTART_LINGER)
    with _logged(program, folder) as (_, output, _start):
        _, pids = output.ready(WORKERS, timeout)
        time.sleep(_SETTLE)
        killed = time.monotonic()
        os.kill(pids[-1], signal.SIGKILL)
        again, _ = output.ready(2 * WORKERS, timeout)
    return (again - killed) * 1e3


def help_time(launcher: Launcher, folder: Path, timeout: float) -> float:
    """Milliseconds of the launcher's --help."""
    start = time.monotonic()
    run(Program(launcher.help, folder, _environment(launcher)), timeout)
    return (time.monotonic() - start) * 1e3


def _environment(launcher: Launcher) -> dict[str, str]:
    return {**launcher.peer.env, **_ENV}


def _program(launcher: Launcher, command: Sequence[str], folder: Path, linger: float) -> Program:
    script = folder / "ready.py"
    script.write_text(SCRIPT)
    env = _environment(launcher) | {"TMPDIR": str(folder)}
    return Program([*command, str(script), str(linger)], folder, env)


@contextlib.contextmanager
def _logged(
    program: Program, folder: Path
) -> Iterator[tuple[subprocess.Popen[str], Output, float]]:
    """The running program, its output and the moment of its start; failures show its stderr."""
    log = folder / "stderr"
    with log.open("w") as errors:
        start = time.monotonic()
        try:
            with started(program, stdout=subprocess.PIPE, stderr=errors.fileno()) as process:
                yield process, Output(process), start
        except RunError as error:
            raise RunError(f"{error}; stderr: {log.read_text()[-1500:].strip()}") from None


def _peak_mib(process: subprocess.Popen[str], timeout: float) -> float:
    """The largest resident set of the agent itself, read until it ends."""
    status, peak = Path(f"/proc/{process.pid}/status"), 0
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
            peak = int(found[1]) if found else peak
        time.sleep(0.005)
    return peak / 1024


class Benchmark:
    """Collects figures; a measurement that failed is remembered and not tried again."""

    def __init__(self, contenders: list[Launcher], timeout: float) -> None:
        self.contenders, self._timeout = contenders, timeout
        self.figures = {launcher.name: Figures() for launcher in contenders}
        self.failures: dict[str, str] = {}

    def round(self, keep: bool) -> None:
        """Each measurement once for each launcher; the first round only warms up."""
        for launcher in self.contenders:
            figures = self.figures[launcher.name] if keep else Figures()
            self._launch(launcher, figures)
            if launcher.help:
                self._one(launcher, help_time, figures.help_ms)
            if launcher.restart:
                self._one(launcher, restart, figures.restart_ms)

    def _launch(self, launcher: Launcher, figures: Figures) -> None:
        both: list[tuple[float, float]] = []
        self._one(launcher, launch, both)
        figures.first_lines_ms.extend(first for first, _ in both)
        figures.agent_peak_mib.extend(peak for _, peak in both)

    def _one(
        self, launcher: Launcher, measure: Callable[[Launcher, Path, float], _T], into: list[_T]
    ) -> None:
        what = f"{launcher.name}, {measure.__name__}"
        if what in self.failures:
            return
        with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
            try:
                into.append(measure(launcher, Path(name), self._timeout))
            except (RunError, OSError) as error:
                self.failures[what] = str(error)
                print(f"{what}: failed: {error}", file=sys.stderr, flush=True)


def report(figures: Mapping[str, Figures]) -> str:
    """Medians per launcher and the ratio of each to torchrun's."""
    header = ["launcher"]
    for title in TITLES.values():
        header += [title, "/torchrun"]
    return render(header, [_line(name, figures) for name in figures])


def _line(name: str, figures: Mapping[str, Figures]) -> list[str]:
    cells = [name]
    for field_name in TITLES:
        mine = median_of(figures, name, field_name)
        base = median_of(figures, "torchrun", field_name)
        cells.append(MISSING if mine is None else f"{mine:.1f}")
        cells.append(MISSING if mine is None or base is None else f"{mine / base:.3f}")
    return cells


def median_of(figures: Mapping[str, Figures], name: str, field_name: str) -> float | None:
    """The median of one launcher's samples; None where it has none."""
    values = getattr(figures[name], field_name) if name in figures else []
    return statistics.median(values) if values else None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds; default: 7")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    return parser.parse_args(arguments)


def available() -> tuple[list[Launcher], dict[str, str]]:
    """The launchers that are here, with versions; the others are named with why not."""
    found, versions = [], {}
    for launcher in launchers():
        try:
            versions[launcher.name] = prepare(launcher.peer)
            found.append(launcher)
        except UnavailableError as error:
            print(f"{launcher.name}: not available here: {error}", flush=True)
    return found, versions


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    facts = machine.describe()
    contenders, versions = available()
    benchmark, interrupted = Benchmark(contenders, options.timeout), False
    try:
        for number in range(options.rounds + 1):
            print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
            benchmark.round(keep=number > 0)
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted; what follows is what was measured until then", file=sys.stderr)
    print(
        f"{WORKERS} workers, medians of {options.rounds} interleaved rounds\nversions: {versions}"
    )
    print(report(benchmark.figures))
    if options.json:
        samples = {name: asdict(figures) for name, figures in benchmark.figures.items()}
        record = {"machine": facts, "versions": versions, "failures": benchmark.failures}
        options.json.write_text(json.dumps(record | {"samples": samples}, indent=1) + "\n")
    return INTERRUPTED if interrupted else 1 if benchmark.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
