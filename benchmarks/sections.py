"""Measures the cost of steps and sections.

    python benchmarks/sections.py --bars

Batches of each call are timed in turns. The time of a section is that of the whole block. "off" is
a process with TORSH_RECORDER=off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check, all_pass
from benchmarks.recorder import measured
from benchmarks.table import render
from torsh_runtime.monitoring.marks import section, step

_BATCH = 200
_BARRED, _MOST_NS, _MOST_OFF_NS = 'with section("data")', 2_000.0, 800.0


def calls() -> dict[str, Callable[[], object]]:
    """Return the measured calls by name."""
    kept = section("kept")

    def block() -> None:
        with section("data"):
            pass

    def kept_block() -> None:
        with kept:
            pass

    return {
        "empty function": lambda: None,
        _BARRED: block,
        "with a section that is kept": kept_block,
        "step(n)": lambda: step(next(_NUMBERS)),
        "step(n, total, samples, loss)": lambda: step(next(_NUMBERS), 9, 64, loss=0.5),
    }


_NUMBERS = iter(range(1 << 60))


def report(on: dict[str, list[float]], off: dict[str, list[float]]) -> list[Check]:
    """Print a line for each call, and return the checks."""
    medians = {name: (statistics.median(on[name]), statistics.median(off[name])) for name in on}
    rows = [[name, f"{one:.0f}", f"{other:.0f}"] for name, (one, other) in medians.items()]
    print(render(["call", "on ns", "off ns"], rows))
    one, other = medians[_BARRED]
    return [
        Check(f"{_BARRED}: ns", one, _MOST_NS, at_most=True, bar="section"),
        Check(f"{_BARRED}, off: ns", other, _MOST_OFF_NS, at_most=True, bar="section"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is not reached")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rounds = 3 if options.quick else options.rounds
    if options.measure:
        print(json.dumps(measured(calls(), _BATCH, rounds)))
        return 0
    found = {}
    for value in ("on", "off"):
        command = [sys.executable, str(Path(__file__).resolve()), "--measure"]
        told = subprocess.run(
            [*command, "--rounds", str(rounds)],
            env={**os.environ, "TORSH_RECORDER": value},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
        ).stdout
        found[value] = json.loads(told)
    checks = report(found["on"], found["off"])
    print("\n".join(map(str, checks)))
    return 0 if all_pass(checks) or not options.bars else 1


if __name__ == "__main__":
    raise SystemExit(main())
