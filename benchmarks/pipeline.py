"""Measures torsh's pipeline parallelism on two ranks.

    python benchmarks/pipeline.py --help

Compares a step of two stages with the same passes without waiting, and with torch's pipelining over
Gloo in the same processes, in turns; a backward pass in two parts with a whole one; and the
simulation with the measurement. Then two network namespaces have a cable, which `tc tbf` slows down
until activations take as long as a forward pass, and steps are compared with those over the full
cable; this needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import bars, table
from benchmarks.bars import Check
from benchmarks.namespaces import INTERFACE, Cable, cable
from benchmarks.peers import HERE, ONE_THREAD, SPAWN, UnavailableError
from benchmarks.processes import Program, RunError, interrupt_on_term, run
from benchmarks.rounds import say
from benchmarks.session import positive

_WORKER = HERE / "pipeline_worker.py"
_STEPS = {"1f1b": 1.16, "zb-h1": 1.09}
"""Largest times as multiples of the same passes without waiting; 8 microbatches allow 1.125 and
1.042.
"""
_SPLIT, _SLOW, _NEAR = 1.02, 1.1, 0.1


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--turns", type=positive, default=15, help="of each measurement; default: 15")
    add("--width", type=positive, default=1024, help="of Linear layers; default: 1024")
    add("--depth", type=positive, default=4, help="layers of a stage; default: 4")
    add("--rows", type=positive, default=128, help="of a microbatch; default: 128")
    add("--microbatches", type=positive, default=8, help="default: 8")
    add("--what", type=lambda text: text.split(","), default=["steps", "split", "link"])
    add("--timeout", type=float, default=300.0, help="seconds that one run may take")
    add("--quick", action="store_true", help="little: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.turns, options.width, options.rows = 1, 64, 8
    return options


def measure(options: argparse.Namespace, what: str, laid: Cable | None = None) -> list[Any]:
    """Return the results of the ranks of one run. Raises RunError if it fails."""
    with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
        found = Path(name) / "found.json"
        fields = ("turns", "width", "depth", "rows", "microbatches")
        plan = {field: getattr(options, field) for field in fields}
        plan |= {"what": what, "interface": INTERFACE, "to": str(found)}
        place, env = [], {**ONE_THREAD, "PYTHONPATH": str(HERE.parent)}
        if laid is not None:
            place = ["--namespaces", ",".join(map(str, laid.holders))]
            place += ["--address", laid.addresses[0]]
            env["TORSH_SOCKET_IFNAME"] = INTERFACE
        command = [sys.executable, str(SPAWN), *place, "2", str(_WORKER), json.dumps(plan)]
        run(Program(command, Path(name), env), options.timeout)
        return [json.loads(Path(f"{found}.{rank}").read_text()) for rank in range(2)]


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """Return the median of the ratios of all turns."""
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def steps(options: argparse.Namespace) -> list[Check]:
    """Print steps compared with work alone and with their simulation."""
    found = measure(options, "steps")
    times, checks, rows = found[0]["times"], [], []
    for name in times:
        against = ratio(times, name, "work")
        simulated = found[0]["simulated"].get(name)
        near = simulated and median(a / b for a, b in zip(simulated, times[name], strict=True))
        cells = [name, f"{1e3 * median(times[name]):.1f}", f"{against:.3f}"]
        rows.append([*cells, table.ratio(near)])
        if name in _STEPS:
            checks.append(Check(f"{name} / work", against, _STEPS[name], True, "steps"))
            checks.append(Check(f"{name} simulated", abs(near - 1), _NEAR, True, "simulated"))
            for rank, each in enumerate(found):
                held, alive = each["alive"][name]
                what = f"{name}, alive on rank {rank}"
                checks.append(Check(what, abs(held / alive - 1), _NEAR, True, "alive"))
    print(f"\nsteps of {options.microbatches} microbatches on 2 stages")
    print(table.render(["step", "ms", "/ work", "simulated / measured"], rows))
    return checks


def split(options: argparse.Namespace) -> list[Check]:
    """Print forward and backward passes with the backward pass in two parts."""
    found = [ratio(each["times"], "parts", "whole") for each in measure(options, "split")]
    print(f"\nforward and backward in two parts / whole: {found[0]:.3f}")
    return [Check("two parts / whole", found[0], _SPLIT, True, "split")]


def link(options: argparse.Namespace) -> list[Check]:
    """Print steps over a slow cable."""
    with cable() as laid:
        (found, _) = measure(options, "link", laid)
    free, slow = found["free"], found["slow"]
    rows = []
    for name, each in (("as it is", free), ("slow", slow)):
        times = [f"{1e3 * median(each['times'][kind]):.1f}" for kind in ("1f1b", "auto")]
        costs = [f"{1e3 * max(each[kind]):.2f}" for kind in ("forward", "transfer")]
        rows.append([name, *costs, *times, each["table"], f"{1e3 * each['simulated']:.1f}"])
    print(f"\nms over a cable; slow is {found['bits'] / 1e6:.0f} Mbit/s")
    head = ["cable", "forward", "transfer", "1f1b", "auto", "which chose", "simulated"]
    print(table.render(head, rows))
    against = median(slow["times"]["auto"]) / median(free["times"]["auto"])
    plain = median(slow["times"]["1f1b"]) / median(free["times"]["1f1b"])
    print(f"slow / as it is: auto {against:.3f}, 1f1b {plain:.3f}")
    return [Check("auto, slow / as it is", against, _SLOW, True, "link")]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    kinds = {"steps": steps, "split": split, "link": link}
    checks: list[Check] = []
    try:
        for name in options.what:
            checks += kinds[name](options)
    except (UnavailableError, RunError) as error:
        say(str(error))
        return 1
    return bars.conclude(options, checks)


if __name__ == "__main__":
    raise SystemExit(main())
