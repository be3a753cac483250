"""Measures how jobs of several nodes recover from faults and changes.

    python benchmarks/elasticity.py --help

Real agents run in network namespaces that represent hosts, and a real etcd of three members in
another one. Needs root. Workers record the time of every step, so the results show what they did.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import elasticity_scenes as scenes
from benchmarks import machine
from benchmarks.bars import Check
from benchmarks.elasticity_scenes import Calm, Partition, Storm
from benchmarks.launchers import Attempts
from benchmarks.peers import UnavailableError
from benchmarks.processes import INTERRUPTED, interrupt_on_term
from benchmarks.rounds import say
from benchmarks.table import render

Times = dict[str, list[float]]
DETECTED = 1.5
"""Seconds beyond the ttl within which the other nodes must train again."""
LEFT, JOINED = 1.0, 3.0
PAUSE = 1.0
"""Seconds for which a worker may pause in an outage, as the machine is busy, too."""


class Session:
    """Holds everything that one call of this benchmark measures."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.attempts = Attempts()
        self.times: Times = {}
        self.calm: dict[str, Calm] = {}
        self.partitions: dict[str, Partition] = {}
        self.storm: Storm | None = None

    def measure(self) -> None:
        """Measure everything that the options ask for."""
        given = self._options
        if given.times:
            self._take("changes", scenes.changes, given.times, self._add)
        if given.etcd_kills:
            name = f"one of three members killed {given.etcd_kills} times"
            self._note(self.calm, name, scenes.members_die, given.etcd_kills)
        if given.outage:
            name = f"all members down for {given.outage:g} s"
            self._note(self.calm, name, scenes.outage, given.outage)
        if given.partition:
            for who in ("leader", "member"):
                leads = who == "leader"
                self._note(self.partitions, who, scenes.partition, given.partition, leads)
        if given.rounds:
            self.storm = self._take("faults", scenes.storm, given.rounds, given.seed)

    def _add(self, name: str, seconds: float) -> None:
        self.times.setdefault(name, []).append(seconds)

    def _take(self, name: str, scene: Callable[..., Any], *given: object) -> Any:
        version, ttl = self._options.etcd, self._options.ttl
        return self.attempts.take(name, lambda folder: scene(folder, version, ttl, *given))

    def _note(
        self, kept: dict[str, Any], name: str, scene: Callable[..., Any], *given: object
    ) -> None:
        found = self._take(name, scene, *given)
        if found is not None:
            kept[name] = found

    def report(self) -> None:
        """Print tables of all measurements."""
        tables = (
            ("seconds until the job trains again", of_times(self.times)),
            ("what is not to be noticed", of_calm(self.calm)),
            ("a node cut off from the others and from etcd", of_partitions(self.partitions)),
            ("faults by chance, one or two at once", of_storm(self.storm)),
        )
        for title, table in tables:
            if table:
                print(f"\n{title}\n{table}")

    def checks(self) -> list[Check]:
        """Return the checks of all measurements."""
        found = [*bars_of_times(self.times, self._options.ttl), *bars_of_calm(self.calm)]
        return [*found, *bars_of_partitions(self.partitions), *bars_of_storm(self.storm)]

    def samples(self) -> dict[str, object]:
        """Return every figure, for a JSON file."""
        return {
            "times": self.times,
            "undisturbed": {name: asdict(calm) for name, calm in self.calm.items()},
            "partitions": {name: asdict(found) for name, found in self.partitions.items()},
            "faults": asdict(self.storm) if self.storm else None,
            "failures": self.attempts.failures,
        }


# ---- tables


def of_times(times: Times) -> str:
    """Return a table with the median and the maximum of each measurement."""
    body = [
        [name, f"{statistics.median(taken):.2f}", f"{max(taken):.2f}", str(len(taken))]
        for name, taken in times.items()
    ]
    return render(["what", "median", "most", "times"], body) if body else ""


def of_calm(calm: Mapping[str, Calm]) -> str:
    body = [
        [name, f"{found.seconds:.0f}", str(found.rounds), f"{found.longest_pause:.2f}",
         str(found.words)]
        for name, found in calm.items()
    ]  # fmt: skip
    header = ["what", "seconds", "restarts", "longest pause s", "lines of agents"]
    return render(header, body) if body else ""


def of_partitions(partitions: Mapping[str, Partition]) -> str:
    body = [
        [name, f"{found.stopped:.2f}", f"{found.others:.2f}", f"{found.rejoined:.2f}",
         str(len(found.overlaps))]
        for name, found in partitions.items()
    ]  # fmt: skip
    header = ["who", "its workers end s", "others train s", "rejoined s", "overlaps"]
    return render(header, body) if body else ""


def of_storm(storm: Storm | None) -> str:
    if storm is None:
        return ""
    body = [[name, str(count)] for name, count in sorted(storm.faults.items())]
    body += [["rounds", str(storm.rounds)], ["workers", str(storm.workers)]]
    return render(["what", "times"], [*body, ["overlaps", str(len(storm.overlaps))]])


# ---- bars


def bars_of_times(times: Times, ttl: float) -> Iterator[Check]:
    """Yield a check of the slowest of each measurement."""
    limits = {"dies": ttl + DETECTED, "told to end": LEFT, "drained": LEFT, "joins": JOINED}
    for name, taken in times.items():
        limit = next(limit for end, limit in limits.items() if name.endswith(end))
        yield Check(f"{name}, s", max(taken), limit, at_most=True)


def bars_of_calm(calm: Mapping[str, Calm]) -> Iterator[Check]:
    for name, found in calm.items():
        yield Check(f"{name}: restarts", found.rounds, 0, at_most=True)
        yield Check(f"{name}: longest pause, s", found.longest_pause, PAUSE, at_most=True)
        yield Check(f"{name}: lines of agents", found.words, 0, at_most=True)


def bars_of_partitions(partitions: Mapping[str, Partition]) -> Iterator[Check]:
    for name, found in partitions.items():
        early = found.others - found.stopped
        yield Check(f"{name} cut off: ended before others trained by, s", early, 0.0)
        yield Check(f"{name} cut off: overlaps", len(found.overlaps), 0, at_most=True)


def bars_of_storm(storm: Storm | None) -> Iterator[Check]:
    if storm:
        yield Check("faults by chance: overlaps", len(storm.overlaps), 0, at_most=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--times", type=int, default=5, help="changes of each kind; default: 5")
    add("--etcd-kills", type=int, default=100, help="of one of three members; default: 100")
    add("--outage", type=float, default=60.0, help="seconds without etcd; default: 60")
    add("--partition", type=float, default=30.0, help="seconds of it; default: 30")
    add("--rounds", type=int, default=200, help="of faults by chance; default: 200")
    add("--only", choices=PARTS, help="this, and nothing of the others")
    add("--ttl", type=float, default=5.0, help="seconds after which a node is lost; default: 5")
    add("--etcd", choices=("3.4", "3.5"), default="3.4", help="version; default: 3.4")
    add("--seed", type=int, default=1, help="of the faults by chance; default: 1")
    add("--json", type=Path, metavar="FILE", help="write all samples")
    add("--quick", action="store_true", help="little of each: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        for name, value in QUICK.items():
            setattr(options, name, value)
    for name in PARTS if options.only else ():
        if name != options.only:
            setattr(options, name.replace("-", "_"), 0)
    return options


PARTS = ("times", "etcd-kills", "outage", "partition", "rounds")
QUICK = {"times": 1, "etcd_kills": 2, "outage": 4.0, "partition": 4.0, "rounds": 2, "ttl": 2.0}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    facts, session, interrupted = machine.describe(), Session(options), False
    try:
        scenes.prepare(options.etcd)
        session.measure()
    except UnavailableError as error:
        raise SystemExit(f"this cannot be measured here: {error}") from None
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted; what follows is what was measured until then")
    session.report()
    failed = bool(session.attempts.failures)
    if options.bars:
        checks = session.checks()
        print("\n" + "\n".join(map(str, checks)))
        failed |= not all(check.passed for check in checks)
    if options.json:
        record = {"machine": facts, "etcd": options.etcd, "ttl": options.ttl, **session.samples()}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return INTERRUPTED if interrupted else 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
