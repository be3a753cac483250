"""Measures what it costs that ranks compare checksums of their state: join(check_every=…).

    python benchmarks/corruption.py --help

Ranks train a linear layer of 25 million parameters with momentum, 200 MB of state. Of two blocks of
`--every` steps one is checked once, in turns, in the same run. cost: processor time of the checked
block over that of the other, less 1, the median of the pairs of the worst rank. check: the time of
one check by itself, and the bytes of the state over it. by itself: that time over the steps'.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from benchmarks.peers import ONE_THREAD
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, run
from benchmarks.session import positive

WORKER = str(Path(__file__).with_name("corruption_worker.py"))
BAR = 0.003
COPIES = 2
"""Number of values of each parameter in the state: itself and its momentum."""


class Cost(NamedTuple):
    """Holds what was found of one number of samples; of the worst rank."""

    cost: float
    step: float
    check: float


def measured(samples: int, options: argparse.Namespace) -> Cost:
    """Run the training with this many samples per rank. Raises RunError if it fails."""
    plan = [options.width, samples, options.every, options.pairs]
    command = [sys.executable, "-m", "torshrun", f"--nproc-per-node={options.ranks}", WORKER]
    with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
        environ = {**ONE_THREAD, "FOUND": name}
        run(Program([*command, *map(str, plan)], Path(name), environ), options.timeout)
        found = [json.loads(path.read_text()) for path in Path(name).glob("[0-9]*")]
    costs = [statistics.median(on / off for on, off in each["pairs"]) - 1 for each in found]
    steps = [statistics.median(off for _, off in each["pairs"]) / options.every for each in found]
    return Cost(max(costs), max(steps), max(each["seconds_of_a_check"] for each in found))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--ranks", type=positive, help="default: as many as processors, 2 at least")
    add("--samples", type=positive, nargs="+", default=[64, 512], help="of a rank and step")
    add("--every", type=positive, default=10, help="steps from check to check; default: 10")
    add("--pairs", type=positive, default=12, help="of blocks; default: 12")
    add("--width", type=positive, default=5000, help="its square is the number of parameters")
    add("--timeout", type=float, default=600.0, help="seconds that one run may take")
    add("--quick", action="store_true", help="little: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    parser.set_defaults(ranks=max(os.cpu_count() or 1, 2))
    options = parser.parse_args(arguments)
    if options.quick:
        options.ranks, options.samples, options.pairs, options.width = 2, [8], 2, 100
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    size = COPIES * 4 * options.width * (options.width + 1)
    print(f"{options.ranks} ranks, {size:,} bytes of state, a check in {options.every} steps")
    checks = []
    try:
        for samples in options.samples:
            found = measured(samples, options)
            alone = found.check / (options.every * found.step)
            print(
                f"{samples} samples: cost {found.cost:.2%} of a step of {found.step * 1e3:.1f} ms, "
                f"by itself {alone:.2%}; check {found.check * 1e3:.1f} ms, "
                f"{size / found.check / 1e9:.1f} GB/s"
            )
            checks.append(Check(f"cost, {samples} samples", found.cost, BAR, at_most=True))
    except RunError as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    if not options.bars:
        return 0
    print("\n" + "\n".join(map(str, checks)))
    return int(not all(check.passed for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
