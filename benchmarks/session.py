"""Holds what the benchmarks in rounds have in common: options, exit status and record."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import bars, machine, samples
from benchmarks.bars import Check
from benchmarks.peers import Peer, UnavailableError, prepare
from benchmarks.processes import INTERRUPTED
from benchmarks.rounds import Rounds, WrongResultError, say
from benchmarks.samples import Case, Row

Work = Sequence[tuple[Case, tuple[int, ...]]]
"""The cases to measure, each with a group of sizes. A case may have several groups."""


def add_options(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Add the options that all of these benchmarks have; `seconds` is the default of --seconds."""
    add = parser.add_argument
    add("--rounds", type=positive, help="interleaved rounds; default: 5")
    add("--extra-rounds", type=int, help="at most, to find a common state; default: as --rounds")
    add("--seconds", type=float, default=seconds, help="measured time per size and run")
    add("--timeout", type=float, default=180.0, help="seconds that one run may take")
    add("--json", type=Path, metavar="FILE", help="write the samples and the machine's description")
    add("--quick", action="store_true", help="little, in one round: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")


def with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Fill in the options that depend on --quick."""
    if options.rounds is None:
        options.rounds = 1 if options.quick else 5
    if options.extra_rounds is None:
        options.extra_rounds = 0 if options.quick else options.rounds
    if options.quick:
        options.seconds = min(options.seconds, 0.1)
    return options


def positive(text: str) -> int:
    """Return a whole number from 1 on; raise ArgumentTypeError otherwise."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def several(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a list such as "ours,gloo"; raise ArgumentTypeError for unknown ones."""
    names = tuple(text.split(","))
    unknown = set(names) - set(known)
    if unknown:
        message = f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}"
        raise argparse.ArgumentTypeError(message)
    return names


def available(wanted: Iterable[Peer]) -> tuple[list[Peer], dict[str, str]]:
    """Return the libraries that can be measured here, and their versions by name.

    The reason is printed for each of the others.
    """
    found, versions = [], {}
    for peer in wanted:
        try:
            versions[peer.name] = prepare(peer)
            found.append(peer)
        except UnavailableError as error:
            print(f"{peer.name}: not available here: {error}", flush=True)
    return found, versions


def conduct(
    rounds: Rounds,
    work: Work,
    report: Callable[[Sequence[Row]], Sequence[Check]],
    versions: dict[str, str],
) -> int:
    """Measure, print, record and judge, and return the exit status.

    An interruption keeps the measurements so far. `report` prints the tables and returns the
    checks.
    """
    options, facts = rounds.options, machine.describe()
    try:
        interrupted = not _measured(rounds, work)
        checks = report(samples.rows(rounds.samples, rounds.limit))
    except WrongResultError as error:
        say(str(error))
        return 2
    _print_footer(rounds, versions)
    if options.json:
        _save(rounds, versions, facts)
    if options.bars:
        print("\n" + bars.summary(checks))
    failed = bool(rounds.failures) or (options.bars and not bars.all_pass(checks))
    return INTERRUPTED if interrupted else 1 if failed else 0


def _measured(rounds: Rounds, work: Work) -> bool:
    """Run all of the work, and return whether it was completed without an interruption."""
    try:
        for case, group in work:
            rounds.measure(case, group)
    except KeyboardInterrupt:
        say("interrupted; what follows is what was measured until then")
        return False
    return True


def _print_footer(rounds: Rounds, versions: dict[str, str]) -> None:
    trips, limit = samples.round_trips(rounds.samples), rounds.limit
    print(f"\nversions: {versions}")
    if trips:
        print(f"round trip {min(trips):.0f} to {max(trips):.0f} ns; near is below {limit:.0f} ns")
    mixed = samples.discarded(rounds.samples, limit)
    print(f"{mixed} of {len(rounds.samples)} samples discarded: the state changed meanwhile")
    for what, why in rounds.failures.items():
        print(f"failed: {what}: {why.splitlines()[-1]}")


def _save(rounds: Rounds, versions: dict[str, str], facts: object) -> None:
    """Write every rank's figures of every run, and a description of the machine."""
    limit = rounds.limit
    record = {
        "machine": facts,
        "versions": versions,
        "near_below_ns": limit,
        "failures": rounds.failures,
        "samples": [asdict(s) | {"state": s.state(limit)} for s in rounds.samples],
    }
    rounds.options.json.write_text(json.dumps(record, indent=1) + "\n")
