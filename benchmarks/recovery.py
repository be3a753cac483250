"""Measures how long the loss of a worker holds up a training that goes on without restarts.

    python benchmarks/recovery.py --help

Workers train 25 million parameters with momentum, 200 MB of state. One after the other is killed at
a random moment. wait: from the SIGKILL until all ranks have committed a step again. net: without
one step, and without the time that the replacement's script took before it was ready to meet the
others (of peers: its whole age, with the import of torch; of --recover: without the steps that the
copy of the lost worker has repeated). hold: how much longer than a step it was until any rank
committed one. step: the median of a step, with join() and without.

Peers train the same with torch: TorchFT; Gloo with torch's reconfigure functions and an agent of a
few lines; torchrun, which restarts all workers, with a checkpoint of each step in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from benchmarks.peers import UnavailableError
from benchmarks.processes import INTERRUPTED, RunError, interrupt_on_term
from benchmarks.recovery_by_copies import copied
from benchmarks.recovery_jobs import FIRST, SETTLE, Figures, Training, losses
from benchmarks.recovery_peers import ALL, measured
from benchmarks.session import positive
from benchmarks.table import render

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
OURS = "join()"
COPIES = "--recover"
"""The row of a script of torch.distributed that knows nothing of recovery."""


@contextlib.contextmanager
def training(
    folder: Path, workers: int, restarts: int, width: int, recovers: bool
) -> Iterator[Training]:
    """Run our training, by torshrun."""
    command = [sys.executable, "-m", "torshrun", f"--nproc-per-node={workers}"]
    command += [f"--max-restarts={restarts}", f"--preload={MODULES}", WORKER, str(width)]
    with Training(folder, workers) as job:
        yield job.start([[*command, str(int(recovers))]], {})


def ours(folder: Path, options: argparse.Namespace) -> Figures:
    """Return what was measured with join()."""
    workers, kills = options.workers, options.kills
    with training(folder, workers, kills, options.width, True) as job:
        return losses(job, workers, kills)


def plain_step(folder: Path, options: argparse.Namespace) -> float:
    """Return the seconds of a step without join()."""
    with training(folder, options.workers, 0, options.width, False) as job:
        job.wait("steps", options.workers, steps=FIRST)
        time.sleep(2 * SETTLE)
        return job.step()


def peers(options: argparse.Namespace) -> dict[str, Figures]:
    """Return what was measured of each peer, and say of the others why they were not."""
    found = {}
    for name in options.peers:
        with tempfile.TemporaryDirectory() as folder:
            place = options.python, Path(folder), options.workers, options.kills, options.width
            try:
                version, found[name] = measured(ALL[name], *place)
                print(f"{name}: {version}", flush=True)
            except UnavailableError as error:
                print(f"{name}: not run, as it is not installed: {error}", flush=True)
            except RunError as error:
                print(f"{name}: not measured: {error}", flush=True)
    return found


def table(figures: Mapping[str, Figures]) -> str:
    """Return medians in seconds, and those of the peers' net and hold over ours."""
    header = ["", "wait", "net", "worst", "hold", "step", "net / ours", "hold / ours"]
    return render(header, [_line(name, each, figures[OURS]) for name, each in figures.items()])


def _line(name: str, found: Figures, own: Figures) -> list[str]:
    net, hold = statistics.median(found.nets), statistics.median(found.holds)
    seconds = statistics.median(found.waits), net, max(found.nets), hold, found.step
    over = net / statistics.median(own.nets), hold / statistics.median(own.holds)
    return [name, *(f"{each:.3f}" for each in seconds), *(f"{each:.1f}" for each in over)]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--workers", type=positive, default=4, help="default: 4")
    add("--kills", type=positive, default=20, help="default: 20")
    add("--width", type=positive, default=5000, help="its square is the number of parameters")
    add("--peers", type=names, default=[*ALL], help=f"default: {','.join(ALL)}; '' is none")
    interpreter = "an interpreter with the peers; default: this one"
    add("--python", type=where, default=sys.executable, help=interpreter)
    add("--quick", action="store_true", help="little: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.workers, options.kills, options.width = 2, 1, 100
    return options


def names(text: str) -> list[str]:
    """Return the peers that a list names. Raises ArgumentTypeError for others."""
    found = [*filter(None, text.split(","))]
    if unknown := {*found} - {*ALL}:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return found


def where(python: str) -> str:
    """Return an interpreter's path as peers find it, which start in a folder of their own."""
    found = shutil.which(python)
    return str(Path(found).absolute()) if found else python  # a venv's link must not be followed


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    try:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            found = ours(Path(one), options)
            plain = plain_step(Path(other), options)
        with tempfile.TemporaryDirectory() as folder:
            own = copied(Path(folder), options.workers, options.kills, options.width)
        figures = {OURS: found, COPIES: own, **peers(options)}
    except RunError as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"{options.workers} workers, {options.kills} kills, {options.width**2:,} parameters")
    print(table(figures))
    print(f"step: {found.step * 1e3:.2f} ms with join(), {plain * 1e3:.2f} ms without")
    if not options.bars:
        return 0
    checks = [
        Check("net, median, s", statistics.median(found.nets), 0.3, at_most=True),
        Check("net, worst, s", max(found.nets), 0.8, at_most=True),
        Check("net with --recover, median, s", statistics.median(own.nets), 0.5, at_most=True),
    ]
    print("\n" + "\n".join(map(str, checks)))
    return int(not all(check.passed for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
