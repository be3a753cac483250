"""Compares torsh's collectives with those of Gloo, MPICH and Open MPI.

    python benchmarks/collectives.py --help

Rounds are interleaved. The figures are the slowest rank's median and the back-to-back mean. Ratios
are taken only between runs during which the machine was in the same state.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import collectives_bars, session, sizes, table
from benchmarks.bars import Check
from benchmarks.pattern import MOST_RANKS, STORAGE
from benchmarks.peers import ALL, MEMCPY, WORKER, Peer, with_bfloat16
from benchmarks.processes import interrupt_on_term
from benchmarks.rounds import Rounds
from benchmarks.samples import GLOO, MPIS, OURS, REGISTERED, Case, Row

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
LIBRARIES = (OURS, GLOO, *MPIS)
_ITERATIONS = (3, 50_000)
_RATIOS: table.Ratios = {
    "best MPI/ours": lambda row: row.best_of(MPIS),
    "gloo/ours": lambda row: row.ratio(GLOO),
    "ours/memcpy": lambda row: row.ratio(OURS, MEMCPY.name),
}
_REGISTERED_RATIO: table.Ratios = {
    "registered/memcpy": lambda row: row.ratio(REGISTERED, MEMCPY.name)
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add, known = parser.add_argument, ", ".join((*OPERATIONS, "barrier"))
    add("--op", type=operations, default=OPERATIONS[:1], help=f"{known}, several, or all")
    add("--dtype", type=_dtypes, default=("float32",), help=f"of {', '.join(STORAGE)}")
    add("--ranks", type=_ranks, help="default: 2,4,8")
    add("--sizes", type=sizes.parse_sizes, help="such as 8,64Ki,1Mi; default: 8 to 256Mi")
    add("--peers", type=_peers, default=LIBRARIES, help="default: ours,gloo,mpich,openmpi")
    add("--registered", action="store_true", help="ours on buffers of empty_shared as well")
    session.add_options(parser, seconds=0.4)
    options = _with_defaults(session.with_defaults(parser.parse_args(arguments)))
    for dtype in options.dtype:
        if max(options.ranks) > MOST_RANKS[dtype]:
            parser.error(f"a comparison of {dtype} has at most {MOST_RANKS[dtype]} ranks")
    return options


def _with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    if options.ranks is None:
        options.ranks = (2,) if options.quick else (2, 4, 8)
    if options.sizes is None:
        options.sizes = sizes.QUICK_GRID if options.quick else sizes.DEFAULT_GRID
    return options


def operations(text: str) -> tuple[str, ...]:
    """Return the operations of a list such as "all_reduce,broadcast", or of "all"."""
    return OPERATIONS if text == "all" else session.several(text, (*OPERATIONS, "barrier"))


def _dtypes(text: str) -> tuple[str, ...]:
    return session.several(text, tuple(STORAGE))


def _peers(text: str) -> tuple[str, ...]:
    return session.several(text, LIBRARIES)


def _ranks(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 2:
        raise argparse.ArgumentTypeError("a comparison has at least 2 ranks")
    return numbers


def contenders(options: argparse.Namespace) -> list[Peer]:
    """Return the requested libraries and the reference."""
    names = [*options.peers, *([REGISTERED] if options.registered else []), MEMCPY.name]
    found = [ALL[name] for name in names]
    return [with_bfloat16(peer) for peer in found] if "bfloat16" in options.dtype else found


def work(options: argparse.Namespace) -> session.Work:
    """Return every requested case with its groups of sizes. A barrier has only one."""
    groups = sizes.groups(options.sizes)
    found = []
    for case in product(options.op, options.dtype, options.ranks):
        wanted = [(options.sizes[0],)] if case[0] == "barrier" else groups
        found += [(Case(*case), group) for group in wanted]
    return found


def start(peer: Peer, case: Case, plan: Path) -> Sequence[str]:
    """Return the command of the peer's own launcher with the worker."""
    ranks = 1 if peer is MEMCPY else case.ranks
    return peer.command(ranks, len(os.sched_getaffinity(0)), [str(WORKER), str(plan)])


def report(rows: Sequence[Row], libraries: Sequence[str]) -> list[Check]:
    """Print a table for each operation and dtype, and return the checks."""
    ratios = {**_RATIOS, **(_REGISTERED_RATIO if REGISTERED in libraries else {})}
    for (operation, dtype), group in groupby(
        rows, lambda row: (row.case.operation, row.case.dtype)
    ):
        here = list(group)
        able = [name for name in libraries if ALL[name].can(dtype)]
        print(f"\n{operation}, {dtype}; us: the worst rank's median, over the runs")
        print(table.medians(here, able, ratios))
        print("\nback-to-back means")
        print(table.means(here, [name for name in able if name != MEMCPY.name]))
        for name in sorted(set(libraries) - set(able)):
            print(f"{name} has no {dtype} and is left out")
    print("\nmemcpy: one process alone, same size; runs: in the order of the columns")
    return collectives_bars.checks(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    peers, versions = session.available(contenders(options))
    rounds = Rounds(options, peers, start, _ITERATIONS)
    names = [peer.name for peer in peers]
    return session.conduct(rounds, work(options), lambda rows: report(rows, names), versions)


if __name__ == "__main__":
    raise SystemExit(main())
