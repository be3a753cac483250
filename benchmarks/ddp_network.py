"""Measures torsh's DistributedDataParallel between two nodes.

    python benchmarks/ddp_network.py --help

The nodes are two network namespaces of this machine with a cable between them, which `tc tbf` slows
down; each has one rank. The first measurement slows the cable until an all-reduce of all gradients
takes as long as a backward pass, and determines how much of the communication is hidden behind it.
The second one runs at --mbit, and determines how much faster steps are with compressed gradients.
It needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
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

COMPRESSORS = ("topk:0.01", "powersgd:4", "onebit", "int8")
_FASTER = {"topk:0.01": 5.0, "powersgd:4": 5.0, "onebit": 5.0}
"""Required speedups. int8 has none, as it sends a quarter of the bytes and cannot be 5 times as
fast.
"""
_HIDDEN = 0.8
_WORKER = HERE / "ddp_network_worker.py"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--rounds", type=positive, default=3, help="of each measurement, in turns; default: 3")
    add("--width", type=positive, default=1600, help="of Linear layers; default: 1600")
    add("--depth", type=positive, default=10, help="how many layers; default: 10")
    add("--batch", type=positive, default=512, help="rows of each rank; default: 512")
    add("--mbit", type=positive, default=100, help="Mbit/s of the slow network; default: 100")
    add("--compressors", type=lambda text: text.split(","), default=COMPRESSORS)
    add("--timeout", type=float, default=300.0, help="seconds that one run may take")
    add("--quick", action="store_true", help="little, in one round: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.width, options.batch, options.mbit = 1, 128, 16, 1000
    return options


def measure(laid: Cable, options: argparse.Namespace, what: str) -> dict[str, Any]:
    """Run one measurement, and return rank 0's results. Raises RunError if it fails."""
    with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
        found = Path(name) / "found.json"
        plan = {name: getattr(options, name) for name in ("width", "depth", "batch", "mbit")}
        plan |= {"what": what, "interface": INTERFACE, "to": str(found)}
        place = ["--namespaces", ",".join(map(str, laid.holders)), "--address", laid.addresses[0]]
        command = [sys.executable, str(SPAWN), *place, "2", str(_WORKER), json.dumps(plan)]
        env = {**ONE_THREAD, "TORSH_SOCKET_IFNAME": INTERFACE}
        run(Program(command, Path(name), env), options.timeout)
        figures: dict[str, Any] = json.loads(found.read_text())
        return figures


def hidden(laid: Cable, options: argparse.Namespace) -> list[Check]:
    """Print how much of the communication the backward pass hides."""
    keys = ("compute", "backward", "communication", "step", "exposed")
    rows, shares = [], []
    for number in range(options.rounds):
        found = measure(laid, options, "overlap")
        shares.append(1 - found["exposed"] / found["communication"])
        rows.append([str(number + 1), *(f"{1e3 * found[key]:.0f}" for key in keys)])
        rows[-1].append(f"{shares[-1]:.2f}")
    print("\nms; compute is a step without communication, of which the backward pass is a part;")
    print("exposed is by how much a step takes longer than the one without that went before it")
    print(table.render(["round", *keys, "hidden"], rows))
    share = statistics.median(shares)
    return [Check("median of what is hidden", share, _HIDDEN, bar="overlap")]


def compressed(laid: Cable, options: argparse.Namespace) -> list[Check]:
    """Print how much faster steps are with compressed gradients."""
    names = ("dense", *options.compressors)
    steps: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            steps[name].append(measure(laid, options, name)["step"])
    medians = {name: statistics.median(values) for name, values in steps.items()}
    ratios = {name: medians["dense"] / medians[name] for name in names}
    print(f"\nsteps at {options.mbit} Mbit/s: the median of {options.rounds} runs")
    lines = [[name, f"{medians[name]:.3f}", f"{ratios[name]:.1f}"] for name in names]
    print(table.render(["gradients", "s", "times as fast as dense"], lines))
    wanted = {name: least for name, least in _FASTER.items() if name in ratios}
    return [Check(name, ratios[name], least, bar="faster") for name, least in wanted.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    try:
        with cable() as laid:
            checks = [*hidden(laid, options), *compressed(laid, options)]
    except (UnavailableError, RunError) as error:
        say(str(error))
        return 1
    return bars.conclude(options, checks)


if __name__ == "__main__":
    raise SystemExit(main())
