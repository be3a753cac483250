"""What the recorder of operations costs: `python benchmarks/recorder.py --bars`.

Two ranks have the same group twice, with the recorder and without (TORSH_RECORDER=off), and call
all_reduce of 8 bytes, and of 1 MiB, in each in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import numpy as np

import torsh_runtime as tr
from benchmarks.bars import Check, all_pass
from benchmarks.peers import ONE_THREAD, SPAWN
from benchmarks.table import render
from torsh_runtime.monitoring import recording

_BARRED, _MOST_NS = "all_reduce of 8 B", 50.0
_CASES = {"all_reduce of 8 B": (1, 2_000), "all_reduce of 1 MiB": (1 << 17, 200)}
"""By name, the elements of 8 bytes, and how many calls are a batch."""


def groups_of(ranks: Sequence[int]) -> dict[str, tr.ProcessGroup]:
    """The same group twice: with the recorder and without."""
    found = {}
    for value in ("on", "off"):
        os.environ[recording.VARIABLE] = value
        recording.own_recording.cache_clear()
        found[value] = tr.new_group(ranks)
    return found


def measured(
    calls: Mapping[str, Callable[[], object]], batch: int, rounds: int
) -> dict[str, list[float]]:
    """Nanoseconds of a call, the mean of each batch, in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(batch):
                call()
            if number:  # the first batch warms up
                found[name].append((time.perf_counter() - begin) / batch * 1e9)
    return found


def be_rank(rounds: int) -> None:
    tr.init_process_group()
    groups, found = groups_of([0, 1]), {}
    for what, (count, batch) in _CASES.items():
        array = np.zeros(count)
        calls = {name: partial(group.all_reduce, array) for name, group in groups.items()}
        found[what] = measured(calls, batch, rounds)
    if tr.get_rank() == 0:
        print(json.dumps(found), flush=True)


def report(found: dict[str, dict[str, list[float]]]) -> list[Check]:
    """Print a line for each; what the bars say."""
    rows, checks = [], []
    for what, times in found.items():
        on, off = (statistics.median(times[name]) for name in ("on", "off"))
        each = [a - b for a, b in zip(times["on"], times["off"], strict=True)]
        more = statistics.median(each)
        rows.append([what, f"{on:.0f}", f"{off:.0f}", f"{more:.0f}", f"{on / off:.3f}"])
        if what == _BARRED:
            checks.append(Check(f"{what}: ns more", more, _MOST_NS, at_most=True, bar="recorder"))
    print(render(["call", "on ns", "off ns", "more ns", "ratio"], rows))
    return checks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is not reached")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rounds = 3 if options.quick else options.rounds
    if options.rank:
        be_rank(rounds)
        return 0
    command = [sys.executable, str(SPAWN), "2", str(Path(__file__).resolve()), "--rank"]
    told = subprocess.run(
        [*command, "--rounds", str(rounds)],
        env={**os.environ, **ONE_THREAD, "TORSH_SECRET": "00" * 16},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    ).stdout
    checks = report(json.loads(told))
    print("\n".join(map(str, checks)))
    return 0 if all_pass(checks) or not options.bars else 1


if __name__ == "__main__":
    raise SystemExit(main())
