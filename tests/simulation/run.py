"""Simulated jobs: `python tests/simulation/run.py --seeds 1000 --agents 50`.

A run that violates an invariant is run again with fewer and fewer faults, and the history of the
smallest is printed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from simulation.job import Plan, Result, play  # noqa: E402 - the path comes first


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument(
        "--all-faults", action="store_true", help="also those that are not stood yet"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="tell of each seed that fails, in a line"
    )
    parser.add_argument("--quick", action="store_true", help="no history of what is found")
    options = parser.parse_args()
    gc.set_threshold(200_000, 20, 100)  # thousands of tasks, and few cycles
    begun, rounds, requests, failed = time.monotonic(), 0, 0, 0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        plan = Plan(
            seed=seed,
            agents=options.agents,
            faults=options.faults,
            all_faults=options.all_faults,
        )
        result = play(plan)
        if result.violation and options.keep_going:
            failed += 1
            print(f"seed {seed}: {result.violation}")
        elif result.violation:
            if not options.quick:
                plan, result = smallest(plan, result)
                print(*result.history, sep="\n")
            print(f"seed {seed}, faults {result.happened}: {result.violation}")
            return 1
        rounds += result.rounds
        requests = max(requests, result.requests)
    print(
        f"{options.seeds} run(s) of {options.agents} agents, {rounds} rounds, {failed or 'no'} violation(s); "
        f"{requests} requests at most of one agent until the first round; "
        f"{time.monotonic() - begun:.1f} s"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
