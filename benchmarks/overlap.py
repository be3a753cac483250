"""Checks that the analysis distinguishes hidden from exposed communication.

    python benchmarks/overlap.py --bars

Two nodes, with a cable that `tc tbf` slows down, start an all_reduce, compute for a known share of
the time that it takes alone, and wait for it. The analysis of their records is compared with that.
It needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import numpy as np

import torsh_runtime as tr
from benchmarks.bars import Check, all_pass
from benchmarks.namespaces import INTERFACE, cable
from benchmarks.peers import ONE_THREAD, SPAWN, UnavailableError
from benchmarks.processes import interrupt_on_term
from benchmarks.table import render

PARTS = (0.0, 0.25, 0.5, 0.75, 1.5)
"""Time of computing during the operation, as a share of the time that it takes alone."""
_POINTS = 0.03
_BITS, _ELEMENTS = 100e6, 1 << 18
_STEPS, _ALONE = 8, 5


def slow_down() -> None:
    """Limit what this end of the cable sends to _BITS bits per second."""
    words = f"qdisc replace dev {INTERFACE} root tbf rate {_BITS:.0f}bit burst 128kb latency 50ms"
    subprocess.run(["tc", *words.split()], check=True, timeout=10)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def step(number: int, array: np.ndarray[Any, Any], seconds: float) -> float:
    """Do one step, and return its seconds."""
    tr.barrier()
    began = time.monotonic()
    tr.monitoring.step(number)
    work = tr.all_reduce(array, async_op=True)
    compute(seconds)
    assert work is not None
    work.wait()
    return time.monotonic() - began


def be_rank(rounds: int) -> None:
    slow_down()
    tr.init_process_group()
    array, number, spans = np.ones(_ELEMENTS, np.float32), 0, {}
    alone = [step(-1 - each, array, 0.0) for each in range(_ALONE * rounds)]
    usual = np.array([median(alone[1:])])
    tr.all_reduce(usual, tr.ReduceOp.MAX)
    for part in PARTS:
        spans[part] = range(number, number + _STEPS * rounds)
        for number in spans[part]:
            step(number, array, part * float(usual[0]))
        number += 1
    tr.monitoring.step(number)
    records: list[Any] = [None] * tr.get_world_size()
    tr.all_gather_object(records, tr.monitoring.own_record())
    if tr.get_rank() == 0:
        found = tr.monitoring.analyse(dict(enumerate(records)))
        told = {part: _hidden(found, steps) for part, steps in spans.items()}
        print(json.dumps([float(usual[0]), list(told.items())]), flush=True)
    tr.destroy_process_group()


def _hidden(found: tr.monitoring.Analysis, steps: range) -> float:
    """Return the share of these steps' communication that was hidden."""
    those = [each for each in found.steps if each.step in steps]
    return median(each.hidden / (each.hidden + each.exposed) for each in those)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is not reached")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rounds = 1 if options.quick else options.rounds
    if options.rank:
        be_rank(rounds)
        return 0
    interrupt_on_term()
    try:
        with cable() as laid:
            place = ["--namespaces", ",".join(map(str, laid.holders))]
            place += ["--address", laid.addresses[0]]
            command = [sys.executable, str(SPAWN), *place, "2", str(Path(__file__).resolve())]
            told = subprocess.run(
                [*command, "--rank", "--rounds", str(rounds)],
                env={
                    **os.environ,
                    **ONE_THREAD,
                    "TORSH_SECRET": os.urandom(16).hex(),
                    "TORSH_SOCKET_IFNAME": INTERFACE,
                },
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=300,
            ).stdout
    except UnavailableError as error:
        print(error)
        return 1
    alone, found = json.loads(told)
    print(f"alone the operation takes {1e3 * alone:.1f} ms")
    rows = [[f"{part:.2f}", f"{min(part, 1):.3f}", f"{hidden:.3f}"] for part, hidden in found]
    print(render(["computed", "hidden", "as analysed"], rows))
    checks = [
        Check(f"computed {part:g}: off by", abs(hidden - min(part, 1)), _POINTS, True, "overlap")
        for part, hidden in found
    ]
    print("\n".join(map(str, checks)))
    return 0 if all_pass(checks) or not options.bars else 1


if __name__ == "__main__":
    raise SystemExit(main())
