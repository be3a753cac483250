"""Measures how long a replacement takes to get the others' state, beside one copy of it.

    python benchmarks/healing.py --help

memory: within a node, half of the state to memory that the replacement has and half to memory that
it is given for it, beside a memcpy of all to memory that the process is given for it, in turns.
link: between two network namespaces whose cable is slow, beside the time that the bytes need
there; needs root. meet: until ranks that call configure() together are a group again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from benchmarks.namespaces import INTERFACE, Cable, cable
from benchmarks.peers import HERE, ONE_THREAD, SPAWN, UnavailableError
from benchmarks.processes import Program, RunError, interrupt_on_term, run
from benchmarks.rounds import say
from benchmarks.session import positive
from benchmarks.spawn import entering

WORKER = str(HERE / "healing_worker.py")
BURST = 128_000
"""Smallest burst in bytes, as TCP passes on 64 KiB in one piece."""
TICK = 1 / 250
"""Seconds between two ticks of the slowest clocks."""
PATIENCE = 10.0
"""Seconds that tc may take."""


def in_node(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of ranks of one node, which torshrun starts."""
    launch = [sys.executable, "-m", "torshrun", f"--nproc-per-node={options.ranks}"]
    return measured(launch, options, options.mib, True, {})


def over_link(laid: Cable, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of two ranks with a slow cable between them."""
    bits = options.mbit * 1e6
    burst = max(int(bits / 8 * TICK), BURST)
    words = f"tc qdisc replace dev {INTERFACE} root tbf rate {int(bits)}bit burst {burst}"
    for holder in laid.holders:
        command = [*entering(holder), *words.split(), "latency", "20ms"]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    place = ["--namespaces", ",".join(map(str, laid.holders)), "--address", laid.addresses[0]]
    launch = [sys.executable, str(SPAWN), *place, "2"]
    env = {"TORSH_SOCKET_IFNAME": INTERFACE}
    return measured(launch, options, options.link_mib, False, env)


def measured(
    launch: Sequence[str],
    options: argparse.Namespace,
    mib: int,
    copies: bool,
    environ: dict[str, str],
) -> dict[str, Any]:
    """Run the worker by this command, and return what it has found."""
    with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
        found = Path(name) / "found.json"
        plan = {"num_bytes": mib << 20, "turns": options.turns, "copies": copies, "to": str(found)}
        command = [*launch, WORKER, json.dumps(plan)]
        run(Program(command, Path(name), {**ONE_THREAD, **environ}), options.timeout)
        figures: dict[str, Any] = json.loads(found.read_text())
        return figures


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--ranks", type=positive, default=4, help="of the node; default: 4")
    add("--mib", type=positive, default=500, help="of state in the node; default: 500")
    add("--link-mib", type=positive, default=100, help="of state over the cable; default: 100")
    add("--mbit", type=positive, default=400, help="Mbit/s of the cable; default: 400")
    add("--turns", type=positive, default=9, help="default: 9")
    add("--timeout", type=float, default=300.0, help="seconds that one run may take")
    add("--quick", action="store_true", help="little: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.ranks, options.mib, options.link_mib, options.turns = 2, 2, 1, 2
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    slow = None
    try:
        near = in_node(options)
        try:
            with cable() as laid:
                far = over_link(laid, options)
            seconds = far["num_bytes"] * 8 / (options.mbit * 1e6)
            slow = statistics.median(far["heal"]) / seconds
        except UnavailableError as error:
            say(str(error))
    except (RunError, subprocess.SubprocessError) as error:
        say(str(error))
        return 1
    heal, copy, meet = (statistics.median(near[name]) for name in ("heal", "copy", "meet"))
    pairs = zip(near["heal"], near["copy"], strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"{options.ranks} ranks, {near['num_bytes']:,} bytes, medians of {options.turns}")
    print(f"memory: {heal * 1e3:.0f} ms, a memcpy {copy * 1e3:.0f} ms, ratio {ratio:.2f}")
    if slow is not None:
        print(f"link of {options.mbit} Mbit/s: {slow:.3f} times the bytes over its rate")
    print(f"meet: {meet * 1e3:.1f} ms")
    if not options.bars:
        return 0
    checks = [
        Check("memory, over a memcpy", ratio, 1.5, at_most=True),
        Check("link, over bytes by rate", slow, 1.15, at_most=True),
        Check("meet, s", meet, 0.05, at_most=True),
    ]
    print("\n" + "\n".join(map(str, checks)))
    return int(not all(check.passed for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
