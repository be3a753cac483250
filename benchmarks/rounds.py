"""Runs libraries in interleaved rounds, until all have run in one state of the machine."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, samples, sizes
from benchmarks.peers import CACHE, MEMCPY, ONE_THREAD, Peer
from benchmarks.processes import Program, RunError, run, segments_removed
from benchmarks.samples import Case, Sample

Start = Callable[[Peer, Case, Path], Sequence[str]]
"""Function that returns the command for all ranks of a peer's part of a case, given a plan."""
Details = Callable[[Case], Mapping[str, Any]]
"""Function that returns additional entries of a case's plan."""
_WRONG = "WRONG RESULT"
_ENOUGH_RUNS = 3


class WrongResultError(Exception):
    """Says that a library computed a wrong result, so that no figure of this run counts."""


class Rounds:
    """Collects samples. A failure is recorded, and left out of later rounds."""

    def __init__(
        self,
        options: argparse.Namespace,
        peers: Sequence[Peer],
        start: Start,
        iterations: tuple[int, int],
        details: Details = lambda case: {},
    ) -> None:
        """Take what to run. `iterations` are the smallest and largest numbers of timed calls."""
        self.options, self.peers = options, peers
        self._start, self._iterations, self._details = start, iterations, details
        self.samples: list[Sample] = []
        self.failures: dict[str, str] = {}
        self.pingpong = machine.pingpong_command(CACHE)

    @property
    def limit(self) -> float:
        """Return the round trip that separates near from far, from all round trips so far."""
        return machine.threshold(samples.round_trips(self.samples))

    def measure(self, case: Case, group: tuple[int, ...]) -> None:
        """Run all rounds of one group of sizes, then more while no state is common to all."""
        for number in range(self.options.rounds):
            self._round(case, group, number)
        for extra in range(self.options.extra_rounds):
            wanted = self._lacking(case, group)
            if not wanted:
                return
            self._round(case, wanted, self.options.rounds + extra)

    def _lacking(self, case: Case, group: tuple[int, ...]) -> tuple[int, ...]:
        here = [s for s in self.samples if s.case == case and s.nbytes in group]
        enough = min(_ENOUGH_RUNS, self.options.rounds)
        names = [peer.name for peer in self._alive(case)]
        return tuple(samples.lacking(here, names, self.limit, enough))

    def _alive(self, case: Case) -> list[Peer]:
        able = [peer for peer in self.peers if peer.can(case.dtype)]
        return [peer for peer in able if _named(peer, case) not in self.failures]

    def _round(self, case: Case, group: tuple[int, ...], number: int) -> None:
        names = ", ".join(map(sizes.format_size, group))
        say(f"{case.operation} {case.dtype}, {case.place} ranks, round {number + 1}: {names}")
        for peer in self._alive(case):
            try:
                self.samples += self._run(peer, case, group, number)
            except RunError as error:
                if _WRONG in str(error):
                    raise WrongResultError(f"{peer.name}: {error}") from None
                self.failures[_named(peer, case)] = str(error)
                say(f"{peer.name}: run failed and is left out from here on: {error}")

    def _run(self, peer: Peer, case: Case, group: tuple[int, ...], number: int) -> list[Sample]:
        ranks = 1 if peer is MEMCPY else case.ranks
        with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
            folder = Path(name)
            plan = folder / "plan.json"
            plan.write_text(json.dumps(self._plan(peer, case, ranks, group)))
            env = {**ONE_THREAD, **peer.env, "TMPDIR": name}
            with segments_removed(peer.segments):
                run(Program(self._start(peer, case, plan), folder, env), self.options.timeout)
            paths = [folder / f"rank-{rank}.json" for rank in range(ranks)]
            missing = [path.name for path in paths if not path.exists()]
            if missing:
                raise RunError(f"left no {', '.join(missing)}")
            records = [json.loads(path.read_text()) for path in paths]
        return samples.from_ranks(peer.name, case, number, records)

    def _plan(self, peer: Peer, case: Case, ranks: int, group: tuple[int, ...]) -> dict[str, Any]:
        return {
            "library": peer.name,
            "operation": case.operation,
            "dtype": case.dtype,
            "ranks": ranks,
            "sizes": group,
            "seconds": self.options.seconds,
            "iterations": self._iterations,
            "pingpong": self.pingpong,
            **self._details(case),
        }


def _named(peer: Peer, case: Case) -> str:
    return f"{peer.name}, {case.operation} {case.dtype}, {case.place} ranks"


def say(text: str) -> None:
    """Print the progress of the benchmark, apart from its results."""
    print(text, file=sys.stderr, flush=True)
