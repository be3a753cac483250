"""Compares torsh's collectives between two nodes with Gloo's.

    python benchmarks/network.py --help

The nodes are two network namespaces of this machine with a virtual cable between them, which needs
root. The libraries are also compared with plain TCP over that cable.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import session, sizes, table
from benchmarks.bars import Check, of_row
from benchmarks.collectives import OPERATIONS, operations
from benchmarks.namespaces import INTERFACE, Cable, cable
from benchmarks.peers import GLOO, HERE, OURS, SPAWN, WORKER, Peer, UnavailableError
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, run, started
from benchmarks.rounds import Rounds, Start, say
from benchmarks.samples import Case, Row
from benchmarks.spawn import entering

NODES = 2
GRID = tuple(size for size in sizes.DEFAULT_GRID if size <= 64 * 2**20)
_ITERATIONS = (3, 20_000)
_MI = 2**20
_TIMEOUT = 60.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--op", type=operations, default=OPERATIONS[:1], help=f"{', '.join(OPERATIONS)}, or all")
    add("--ranks", type=_ranks, default=(2, 4), help="in all, on two nodes; default: 2,4")
    add("--sizes", type=sizes.parse_sizes, help="such as 8,64Ki,1Mi; default: 8 to 64Mi")
    add("--peers", type=_peers, default=(OURS.name, GLOO.name), help="default: ours,gloo")
    session.add_options(parser, seconds=0.4)
    options = session.with_defaults(parser.parse_args(arguments))
    if options.sizes is None:
        options.sizes = sizes.QUICK_GRID if options.quick else GRID
    return options


def _ranks(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if any(number < NODES or number % NODES for number in numbers):
        raise argparse.ArgumentTypeError(f"ranks are dealt to {NODES} nodes in equal parts")
    return numbers


def _peers(text: str) -> tuple[str, ...]:
    return session.several(text, (OURS.name, GLOO.name))


def contenders(names: Sequence[str]) -> list[Peer]:
    """Return the requested libraries, set to use the cable."""
    interface = {f"{name}_SOCKET_IFNAME": INTERFACE for name in ("TORSH", "GLOO")}
    found = (peer for peer in (OURS, GLOO) if peer.name in names)
    return [replace(peer, env={**peer.env, **interface}) for peer in found]


def start_on(laid: Cable) -> Start:
    """Return a function that starts ranks at the ends of this cable, in the same way for all."""
    place = ["--namespaces", ",".join(map(str, laid.holders)), "--address", laid.addresses[0]]

    def start(peer: Peer, case: Case, plan: Path) -> Sequence[str]:
        return [peer.python, str(SPAWN), *place, str(case.ranks), str(WORKER), str(plan)]

    return start


def work(options: argparse.Namespace) -> session.Work:
    """Return every requested case with its groups of sizes."""
    cases = [Case(op, ranks=n, nodes=NODES) for op, n in product(options.op, options.ranks)]
    return list(product(cases, sizes.groups(options.sizes)))


def raw_speed(laid: Cable) -> dict[str, float]:
    """Return the speed of two plain sockets over this cable, from tcp_speed.py.

    Raises RunError if they fail.
    """
    script = str(HERE / "tcp_speed.py")
    near, far = ([*entering(holder), sys.executable, script] for holder in laid.holders)
    listener = Program([*near, "listen"], HERE)
    with started(listener, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        run(Program([*far, laid.addresses[0], port], HERE), _TIMEOUT)
        text, _ = process.communicate(timeout=_TIMEOUT)
    found: dict[str, float] = json.loads(text)
    return found


def report(rows: Sequence[Row], libraries: Sequence[str], raw: dict[str, float]) -> list[Check]:
    """Print a table for each operation, and return the checks."""
    for operation, group in groupby(rows, lambda row: row.case.operation):
        here = list(group)
        print(f"\n{operation}, float32, nodes x ranks of each; us: the worst rank's median")
        print(table.medians(here, libraries, {"gloo/ours": lambda row: row.ratio(GLOO.name)}))
        print("\nback-to-back means")
        print(table.means(here, libraries))
    print(
        f"\nTCP alone: round trip {raw['round_trip_us']:.1f} us, one way "
        f"{raw['one_way_gbs']:.2f} GB/s, both ways at once {raw['both_ways_gbs']:.2f} GB/s each"
    )
    return [check for row in rows for check in checks(row)]


def checks(row: Row) -> list[Check]:
    """Return the check of this row.

    all_reduce must be twice as fast as Gloo, except for one rank on each node above 1 MiB, where
    the network limits both.
    """
    if row.case.operation != "all_reduce":
        return []
    limit = 1.0 if row.case.ranks == NODES and row.nbytes > _MI else 2.0
    name = f"{row.case.place} ranks"
    return [of_row(name, row, "gloo/ours", row.ratio(GLOO.name), limit)]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    peers, versions = session.available(contenders(options.peers))
    names = [peer.name for peer in peers]
    try:
        with cable() as laid:
            raw = raw_speed(laid)
            rounds = Rounds(options, peers, start_on(laid), _ITERATIONS)
            return session.conduct(
                rounds, work(options), lambda rows: report(rows, names, raw), versions
            )
    except (UnavailableError, RunError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
