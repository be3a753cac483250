"""Measures how long the loss of a worker holds up a training that goes on without restarts.

    python benchmarks/recovery.py --help

Workers train 25 million parameters with momentum, 200 MB of state. One after the other is killed at
a random moment. wait: from the SIGKILL until all ranks have committed the next step. net: without
one step, and without the time that the replacement's script took before join(). step: the median of
a step with join(), and of the same one without.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from benchmarks.processes import interrupt_on_term
from benchmarks.session import positive

WORKER = str(Path(__file__).with_name("recovery_worker.py"))
MODULES = ",".join(
    (
        "numpy",
        "torsh_runtime.nn.framework",
        "torsh_runtime.optim",
        "torsh_runtime.bootstrap",
        "torsh_runtime.backends.native.backend",
        "torsh_runtime.elastic.training",
    )
)
"""The modules that --preload=auto imports, but for a package that is not installed."""
SETTLE = 3.0
"""Seconds of steps before each kill, in which standbys are made."""
FIRST = 5
"""Number of steps before the time of a step is taken."""
PATIENCE = 60.0


class Start(NamedTuple):
    """A process that has joined, and the seconds that its script took before."""

    rank: int
    pid: int
    lead: float


class Training:
    """Represents a job whose output is in a file, as far as it has come."""

    def __init__(self, folder: Path, workers: int, restarts: int, width: int, recovers: bool):
        self._path, self._workers = folder / "out", workers
        command = [sys.executable, "-m", "torshrun", f"--nproc-per-node={workers}"]
        command += [f"--max-restarts={restarts}", f"--preload={MODULES}", WORKER, str(width)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self._path.open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [*command, str(int(recovers))], stdout=out, stderr=err, env=environ
            )

    def starts(self) -> list[Start]:
        found = re.findall(r"start (\d+) (\d+) (\S+)\n", self._path.read_text())
        return [Start(int(rank), int(pid), float(lead)) for rank, pid, lead in found]

    def commits(self) -> dict[int, list[float]]:
        """Return when ranks committed each step."""
        commits: dict[int, list[float]] = {}
        for step, at in re.findall(r"commit (\d+) (\S+)\n", self._path.read_text()):
            commits.setdefault(int(step), []).append(float(at))
        return commits

    def complete(self) -> list[float]:
        """Return when each step that all ranks have committed was complete, in order."""
        return sorted(max(each) for each in self.commits().values() if len(each) >= self._workers)

    def wait(
        self, what: str, seconds: float, starts: int, after: float = 0.0, steps: int = 1
    ) -> None:
        """Wait for so many starts, and as many steps that were complete after that time."""
        deadline = time.monotonic() + seconds
        while len(self.starts()) < starts or sum(at > after for at in self.complete()) < steps:
            if time.monotonic() > deadline or self.process.poll() is not None:
                errors = self._path.with_name("err").read_text()
                raise SystemExit(f"no {what} within {seconds:g} s:\n{errors}")
            time.sleep(0.05)

    def step(self) -> float:
        """Return the median seconds of a step."""
        times = self.complete()
        return statistics.median(b - a for a, b in itertools.pairwise(times))


def losses(folder: Path, options: argparse.Namespace) -> tuple[list[float], list[float], float]:
    """Return the seconds of wait and net of each kill, and those of a step."""
    workers, kills = options.workers, options.kills
    training = Training(folder, workers, kills, options.width, True)
    waits, nets = [], []
    try:
        training.wait("steps", PATIENCE, workers, steps=FIRST)
        time.sleep(SETTLE)
        step = training.step()
        for number in range(kills):
            time.sleep(SETTLE + random.random() * step)
            present = {each.rank: each.pid for each in training.starts()}
            killed = time.monotonic()
            os.kill(random.choice([*present.values()]), signal.SIGKILL)
            training.wait("step after a kill", PATIENCE, workers + number + 1, killed)
            again = min(at for at in training.complete() if at > killed)
            waits.append(again - killed)
            nets.append(waits[-1] - step - training.starts()[-1].lead)
        return waits, nets, step
    finally:
        training.process.terminate()
        training.process.wait()


def plain_step(folder: Path, options: argparse.Namespace) -> float:
    """Return the seconds of a step without join()."""
    training = Training(folder, options.workers, 0, options.width, False)
    try:
        training.wait("steps", PATIENCE, options.workers, steps=FIRST)
        time.sleep(2 * SETTLE)
        return training.step()
    finally:
        training.process.terminate()
        training.process.wait()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--workers", type=positive, default=4, help="default: 4")
    add("--kills", type=positive, default=20, help="default: 20")
    add("--width", type=positive, default=5000, help="its square is the number of parameters")
    add("--quick", action="store_true", help="little: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.workers, options.kills, options.width = 2, 1, 100
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        waits, nets, step = losses(Path(one), options)
        plain = plain_step(Path(other), options)
    print(f"{options.workers} workers, {options.kills} kills, {options.width**2:,} parameters")
    for name, values in (("wait", waits), ("net", nets)):
        print(f"{name}: median {statistics.median(values):.3f} s, worst {max(values):.3f} s")
    print(f"step: {step * 1e3:.2f} ms with join(), {plain * 1e3:.2f} ms without")
    if not options.bars:
        return 0
    checks = [
        Check("net, median, s", statistics.median(nets), 0.3, at_most=True),
        Check("net, worst, s", max(nets), 0.8, at_most=True),
    ]
    print("\n" + "\n".join(map(str, checks)))
    return int(not all(check.passed for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
