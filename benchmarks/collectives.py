"""Collectives of ours beside Gloo, MPICH and Open MPI: `python benchmarks/collectives.py --help`.

Interleaved rounds, the worst rank's median and the back-to-back mean, and ratios only between runs
during which the machine was in the same state.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import bars, machine, samples, sizes, table
from benchmarks.peers import ALL, CACHE, MEMCPY, ONE_THREAD, WORKER, Peer, UnavailableError, prepare
from benchmarks.processes import (
    INTERRUPTED,
    Program,
    RunError,
    interrupt_on_term,
    run,
    segments_removed,
)

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")
LIBRARIES = tuple(name for name in ALL if name != MEMCPY.name)
_WRONG = "WRONG RESULT"
_ENOUGH_RUNS = 3
_ITERATIONS = (3, 50_000)


class WrongResultError(Exception):
    """A library computed something else than it should; no figure of this run counts."""


class Benchmark:
    """Collects samples; what failed is remembered and left out of the later rounds."""

    def __init__(self, options: argparse.Namespace, peers: list[Peer]) -> None:
        self.options, self.peers = options, peers
        self.samples: list[samples.Sample] = []
        self.failures: dict[str, str] = {}
        self.pingpong = machine.pingpong_command(CACHE)
        self._cpus = len(os.sched_getaffinity(0))

    @property
    def limit(self) -> float:
        """What parts near from far, from all round trips so far."""
        return machine.threshold(samples.round_trips(self.samples))

    def measure(self, ranks: int, group: tuple[int, ...]) -> None:
        """All rounds of one group of sizes, then more while no state is common to all."""
        for number in range(self.options.rounds):
            self._round(ranks, group, number)
        for extra in range(self.options.extra_rounds):
            wanted = self._lacking(ranks, group)
            if not wanted:
                return
            self._round(ranks, wanted, self.options.rounds + extra)

    def _lacking(self, ranks: int, group: tuple[int, ...]) -> tuple[int, ...]:
        here = [s for s in self.samples if s.ranks == ranks and s.nbytes in group]
        enough = min(_ENOUGH_RUNS, self.options.rounds)
        names = [peer.name for peer in self._alive()]
        return tuple(samples.lacking(here, names, self.limit, enough))

    def _alive(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.name not in self.failures]

    def _round(self, ranks: int, group: tuple[int, ...], number: int) -> None:
        names = ", ".join(map(sizes.format_size, group))
        _say(f"{ranks} ranks, round {number + 1}: {names}")
        for peer in self._alive():
            try:
                self.samples += self._run(peer, ranks, group, number)
            except RunError as error:
                if _WRONG in str(error):
                    raise WrongResultError(f"{peer.name}: {error}") from None
                self.failures[peer.name] = str(error)
                _say(f"{peer.name}: run failed and is left out from here on: {error}")

    def _run(
        self, peer: Peer, ranks: int, group: tuple[int, ...], number: int
    ) -> list[samples.Sample]:
        own_ranks = 1 if peer is MEMCPY else ranks
        with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
            folder = Path(name)
            plan = folder / "plan.json"
            plan.write_text(json.dumps(self._plan(peer, own_ranks, group)))
            command = peer.command(own_ranks, self._cpus, [str(WORKER), str(plan)])
            env = {**ONE_THREAD, **peer.env, "TMPDIR": name}
            with segments_removed(peer.segments):
                run(Program(command, folder, env), self.options.timeout)
            paths = [folder / f"rank-{rank}.json" for rank in range(own_ranks)]
            missing = [path.name for path in paths if not path.exists()]
            if missing:
                raise RunError(f"left no {', '.join(missing)}")
            records = [json.loads(path.read_text()) for path in paths]
        return samples.from_ranks(peer.name, ranks, number, records)

    def _plan(self, peer: Peer, ranks: int, group: tuple[int, ...]) -> dict[str, Any]:
        return {
            "library": peer.name,
            "operation": self.options.op,
            "ranks": ranks,
            "sizes": group,
            "seconds": self.options.seconds,
            "iterations": _ITERATIONS,
            "pingpong": self.pingpong,
        }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--op", choices=OPERATIONS, default="all_reduce")
    add("--ranks", type=_numbers, default=(2, 4), help="default: 2,4")
    add("--sizes", type=sizes.parse_sizes, help="such as 8,64Ki,1Mi; default: 8 to 256Mi")
    add("--peers", type=_names, default=LIBRARIES, help="default: ours,gloo,mpich,openmpi")
    add("--rounds", type=int, help="interleaved rounds; default: 5")
    add("--extra-rounds", type=int, help="at most, to find a common state; default: as --rounds")
    add("--seconds", type=float, help="measured time per size and run; default: 0.4")
    add("--timeout", type=float, default=180.0, help="seconds that one run may take")
    add("--json", type=Path, metavar="FILE", help="write the samples and the machine's description")
    add("--quick", action="store_true", help="three sizes, one round: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    return _with_defaults(parser.parse_args(arguments))


def _with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    quick: bool = options.quick
    options.sizes = options.sizes or (sizes.QUICK_GRID if quick else sizes.DEFAULT_GRID)
    if options.op == "barrier":
        options.sizes = options.sizes[:1]
    options.rounds = options.rounds or (1 if quick else 5)
    if options.extra_rounds is None:
        options.extra_rounds = options.rounds
    options.seconds = options.seconds or (0.05 if quick else 0.4)
    return options


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 2:
        raise argparse.ArgumentTypeError("a collective needs at least 2 ranks")
    return numbers


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = set(names) - set(LIBRARIES)
    if unknown:
        known = ", ".join(LIBRARIES)
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {known}")
    return names


def available(names: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    """The libraries that can be measured here, with versions; the others are named with why."""
    found, versions = [], {}
    for peer in (*(ALL[name] for name in names), MEMCPY):
        try:
            versions[peer.name] = prepare(peer)
            found.append(peer)
        except UnavailableError as error:
            print(f"{peer.name}: not available here: {error}", flush=True)
    return found, versions


def report(benchmark: Benchmark, versions: dict[str, str]) -> list[bars.Check]:
    """Print the tables; returns what the bars say."""
    limit, operation = benchmark.limit, benchmark.options.op
    trips = samples.round_trips(benchmark.samples)
    names = [peer.name for peer in benchmark.peers if peer is not MEMCPY]
    rows = samples.rows(benchmark.samples, limit)
    kind = "float32, sum" if operation in ("all_reduce", "reduce_scatter") else "float32"
    print(f"\n{operation}, {kind}; us: the worst rank's median, over the runs")
    print(table.collectives(rows, names, operation))
    print("\nback-to-back means")
    print(table.means(rows, names))
    print(f"\nversions: {versions}")
    if trips:
        print(f"round trip {min(trips):.0f} to {max(trips):.0f} ns; near is below {limit:.0f} ns")
    print("memcpy: one process alone, same size; runs: in the order of the columns")
    mixed = samples.discarded(benchmark.samples, limit)
    print(f"{mixed} of {len(benchmark.samples)} samples discarded: the state changed meanwhile")
    return bars.checks(rows)


def save(path: Path, benchmark: Benchmark, versions: dict[str, str], facts: object) -> None:
    """Every rank's figures of every run, and what they were taken on."""
    limit = benchmark.limit
    record = {
        "machine": facts,
        "versions": versions,
        "operation": benchmark.options.op,
        "near_below_ns": limit,
        "failures": benchmark.failures,
        "samples": [asdict(s) | {"state": s.state(limit)} for s in benchmark.samples],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure_all(benchmark: Benchmark) -> None:
    for ranks in benchmark.options.ranks:
        for group in sizes.groups(benchmark.options.sizes):
            benchmark.measure(ranks, group)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    facts = machine.describe()
    peers, versions = available(options.peers)
    benchmark = Benchmark(options, peers)
    interrupted = False
    try:
        _measure_all(benchmark)
    except WrongResultError as error:
        _say(str(error))
        return 2
    except KeyboardInterrupt:
        interrupted = True
        _say("interrupted; what follows is what was measured until then")
    verdicts = report(benchmark, versions)
    if options.json:
        save(options.json, benchmark, versions, facts)
    if options.bars:
        print("\n" + bars.summary(verdicts))
    failed = benchmark.failures or (options.bars and not bars.all_pass(verdicts))
    return INTERRUPTED if interrupted else 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
