"""Simulated jobs: `python tests/simulation/run.py --seeds 1000 --agents 50`.

A run that violates an invariant is run again with fewer and fewer faults, and the history of the
smallest is printed.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from simulation.job import Plan, Result, play  # noqa: E402 - the path is first


def smallest(plan: Plan, result: Result) -> tuple[Plan, Result]:
    """The same run with as few of its faults as still end in a violation."""
    kept = set(result.happened)
    for number in sorted(kept, reverse=True):
        fewer = replace(plan, only=frozenset(kept - {number}))
        again = play(fewer)
        if again.violation:
            kept.discard(number)
            plan, result = fewer, again
    return plan, result


def results(plans: list[Plan], jobs: int) -> Iterator[Result]:
    """Of all runs, in order, so many at a time."""
    if jobs == 1:
        yield from map(play, plans)
        return
    with multiprocessing.Pool(jobs, _prepare) as pool:
        yield from pool.imap(play, plans, chunksize=4)


def _prepare() -> None:
    gc.set_threshold(200_000, 20, 100)  # thousands of tasks, and few cycles


def tell(plan: Plan, result: Result, quick: bool) -> None:
    """What was found, and unless it is to be quick the history of the smallest run with it."""
    if not quick:
        plan, result = smallest(plan, result)
        print(*result.history, sep="\n")
    print(f"seed {plan.seed}, faults {result.happened}: {result.violation}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time")
    for option, what in {
        "--keep-going": "tell of each seed that fails, in a line",
        "--quick": "no history of what is found",
    }.items():
        parser.add_argument(option, action="store_true", help=what)
    return parser.parse_args()


def main() -> int:
    options = parse()
    _prepare()
    plans = [
        Plan(
            seed=seed,
            agents=options.agents,
            faults=options.faults,
        )
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    begun, rounds, requests, failed = time.monotonic(), 0, 0, 0
    for plan, result in zip(plans, results(plans, options.jobs), strict=True):
        rounds += result.rounds
        requests = max(requests, result.requests)
        if result.violation:
            failed += 1
            tell(plan, result, options.quick or options.keep_going)
            if not options.keep_going:
                return 1
    print(f"{options.seeds} run(s) of {options.agents} agents, {rounds} rounds")
    print(f"{failed or 'no'} violation(s); {time.monotonic() - begun:.1f} s")
    print(f"{requests} requests at most of one agent until the first round")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
