"""Measures starts and restarts with preloaded imports.

    python benchmarks/standbys.py --help

Unmodified scripts that import torch run under torshrun with and without --preload, and under
torchrun, all with this Python and in interleaved rounds; medians count. restart: from a worker's
SIGKILL until all workers have passed an all_reduce again (torch.distributed with gloo). start: from
the command until all workers have passed `import torch`, and the memory of all processes then
(PSS). bare: from the command to the first lines of a script that imports nothing, and the agent's
peak.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import machine, output
from benchmarks.bars import Check
from benchmarks.launch import Output
from benchmarks.launchers import Attempts, error_log
from benchmarks.processes import Program, interrupt_on_term, started
from benchmarks.rounds import say
from benchmarks.session import positive, several
from benchmarks.table import MISSING, render

READY = 'sys.stdout.write(f"READY pid={os.getpid()}\\n"); sys.stdout.flush()\n'
SCRIPTS = {
    "restart": "import os, sys, time\nimport torch\nimport torch.distributed as dist\n"
    'dist.init_process_group("gloo")\n'
    "dist.all_reduce(torch.ones(1))\n" + READY + "time.sleep(120)\n",
    "start": "import os, sys, time\nimport torch\n" + READY + "time.sleep(120)\n",
    "bare": "import os, sys, time\n" + READY + "time.sleep(120)\n",
}
PARTS = tuple(SCRIPTS)
OURS = (sys.executable, "-m", "torshrun")
LAUNCHERS: Mapping[str, tuple[str, ...]] = {
    "torshrun --preload auto": (*OURS, "--preload", "auto"),
    "torshrun": OURS,
    "torchrun": (sys.executable, "-m", "torch.distributed.run"),
}
PRELOAD, PLAIN, TORCHRUN = LAUNCHERS
SETTLE = 6.0
"""Seconds of quiet before a worker is killed, in which standbys are made."""
ENV = {"PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}


class Trial:
    """Represents one run of a launcher."""

    def __init__(
        self, part: str, launcher: str, workers: int, folder: Path, timeout: float
    ) -> None:
        (folder / "script.py").write_text(SCRIPTS[part])
        options = ("--max-restarts", "3") if part == "restart" else ()
        command = (*LAUNCHERS[launcher], "--nproc-per-node", str(workers), *options, "script.py")
        self._program = Program(command, folder, {**ENV, "TMPDIR": str(folder)})
        self._folder, self._workers, self._timeout = folder, workers, timeout

    def start(self) -> tuple[float, float, float]:
        """Return the milliseconds until all are ready, and the MiB of all processes and of the
        agent.
        """
        with self._running() as (lines, begun, pid):
            ready, _ = lines.ready(self._workers, self._timeout)
            return (ready - begun) * 1e3, sum(map(_pss_mib, _tree(pid))), output.peak_mib(pid)

    def restart(self) -> float:
        """Return the milliseconds from the death of one worker until all are ready again."""
        with self._running() as (lines, _, _):
            _, pids = lines.ready(self._workers, self._timeout)
            time.sleep(SETTLE)
            killed = time.monotonic()
            os.kill(pids[-1], signal.SIGKILL)
            again, _ = lines.ready(2 * self._workers, self._timeout)
            return (again - killed) * 1e3

    @contextlib.contextmanager
    def _running(self) -> Iterator[tuple[Output, float, int]]:
        with error_log(self._folder) as errors:
            begun = time.monotonic()
            with started(self._program, stdout=subprocess.PIPE, stderr=errors) as process:
                yield Output(process), begun, process.pid


def _tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [pid]
    with contextlib.suppress(OSError):
        for child in children.read_text().split():
            found += _tree(int(child))
    return found


def _pss_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


class Session:
    """Holds everything that one call measures: samples by figure, launcher and workers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._attempts = options, Attempts()
        self.samples: dict[tuple[str, str, int], list[float]] = {}

    @property
    def failures(self) -> dict[str, str]:
        return self._attempts.failures

    def round(self, number: int) -> None:
        """Do each measurement once, one launcher after the other."""
        for part in self._options.parts:
            for workers in self._options.workers[part]:
                for launcher in LAUNCHERS:
                    say(f"round {number + 1}: {part}, {workers} workers, {launcher}")
                    self._measure(part, launcher, workers, number)

    def _measure(self, part: str, launcher: str, workers: int, number: int) -> None:
        def attempt(folder: Path) -> dict[str, float]:
            trial = Trial(part, launcher, workers, folder, self._options.timeout)
            if part == "restart":
                return {"restart ms": trial.restart()}
            names = (f"{part} ms", f"{part} PSS MiB", f"{part} agent MiB")
            return dict(zip(names, trial.start(), strict=True))

        what = f"{launcher}: {part}, {workers} workers, round {number + 1}"
        taken = self._attempts.take(what, attempt)
        for what, value in (taken or {}).items():
            self.samples.setdefault((what, launcher, workers), []).append(value)

    def median(self, what: str, launcher: str, workers: int) -> float | None:
        values = self.samples.get((what, launcher, workers))
        return statistics.median(values) if values else None

    def report(self) -> str:
        """Return a line for each figure: medians, and the ratios of --preload to the others."""
        header = ["", "workers", *LAUNCHERS, f"/ {PLAIN}", f"/ {TORCHRUN}"]
        rows = dict.fromkeys((what, workers) for what, _, workers in self.samples)
        return render(header, [self._line(what, workers) for what, workers in rows])

    def _line(self, what: str, workers: int) -> list[str]:
        medians = [self.median(what, launcher, workers) for launcher in LAUNCHERS]
        ratios = [self.ratio(what, workers, other) for other in (PLAIN, TORCHRUN)]
        figures = [MISSING if value is None else f"{value:.1f}" for value in medians]
        return [what, str(workers), *figures, *(f"{each:.3f}" if each else "-" for each in ratios)]

    def ratio(self, what: str, workers: int, other: str) -> float | None:
        """Return the ratio of --preload to another launcher, from medians."""
        mine, theirs = self.median(what, PRELOAD, workers), self.median(what, other, workers)
        return mine / theirs if mine and theirs else None

    def checks(self) -> Iterator[Check]:
        """Yield the checks of all measurements."""
        for what, workers in dict.fromkeys((what, each) for what, _, each in self.samples):
            mine = self.median(what, PRELOAD, workers)
            place = f"{workers} workers: {what}"
            if what == "restart ms":
                yield Check(place, mine, 300.0, at_most=True)
                yield self._of(what, workers, TORCHRUN, 0.1)
            elif what == "start ms":
                yield self._of(what, workers, PLAIN, 0.35)
            elif what == "start PSS MiB":
                yield self._of(what, workers, PLAIN, 0.4)
            elif what == "bare agent MiB":
                yield Check(place, mine, 30.0, at_most=True)

    def _of(self, what: str, workers: int, other: str, limit: float) -> Check:
        name = f"{workers} workers: {what}, of {other}'s"
        return Check(name, self.ratio(what, workers, other), limit, at_most=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--parts", type=lambda text: several(text, PARTS), default=PARTS, help="default: all")
    add("--rounds", type=positive, default=3, help="interleaved rounds; default: 3")
    add("--timeout", type=float, default=45.0, help="seconds for one measurement")
    add("--json", type=Path, metavar="FILE", help="write all samples")
    add("--quick", action="store_true", help="little, in one round: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    options.workers = {"restart": (2, 4), "start": (8,), "bare": (2,)}
    if options.quick:
        options.rounds, options.workers = 1, dict.fromkeys(PARTS, (2,))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    facts, session = machine.describe(), Session(options)
    for number in range(options.rounds):
        session.round(number)
    print(f"medians of {options.rounds} interleaved rounds\n{session.report()}")
    # torchrun's workers sometimes hang after a restart, in the previous workers' store.
    failed = any(not what.startswith(TORCHRUN) for what in session.failures)
    for what, why in session.failures.items():
        print(f"failed: {what}: {why.splitlines()[0]}")
    if options.bars:
        checks = list(session.checks())
        print("\n" + "\n".join(map(str, checks)))
        failed |= not all(check.passed for check in checks)
    if options.json:
        samples = {", ".join(map(str, key)): values for key, values in session.samples.items()}
        record = {"machine": facts, "samples": samples, "failures": session.failures}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
