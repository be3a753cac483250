"""Runs the tests so that the run ends: `python tests/run.py [--quick] [PYTEST'S ARGUMENTS...]`.

Without arguments, or with --quick alone, tests of four files run at a time. One that fails is run
twice more, by itself; if it passes then it is called unsteady, and of these there may be a few.
With arguments pytest does what they say. A run that takes too long is ended in any case, with all
that it has started, and says which tests were running, and where they stood.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from support.run_processes import Ended, adopt_orphans, end_all, stacks, start, wait
from support.run_record import Record

LIMIT = 60 * 60.0
"""Seconds for all that a command runs."""
SOAK_LIMIT = 3 * 60 * 60.0
"""The same for the fault suites at full length (--soak)."""
MOST_UNSTEADY = 3
TURNS = 2
"""How often a test that failed has to pass by itself."""
MOST_COSTLY = 20
"""Files whose costs are shown."""
FILES_AT_A_TIME = (
    "--numprocesses=4",
    "--dist=loadfile",
    "--no-loadscope-reorder",
    "--durations=30",
)


class Runs:
    """Runs of pytest, one after another, until a common deadline."""

    def __init__(self, folder: Path, limit: float) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + limit
        self._late = f"had not ended after {limit / 60:g} minutes"
        self._number = 0

    def all_tests(self, arguments: Sequence[str]) -> int:
        """Run all tests, and those that failed once more; the exit code."""
        code, record = self.pytest([*FILES_AT_A_TIME, *arguments])
        say_costs(record)
        failed = record.failed()
        if code != 1 or not failed or not record.is_collected() or record.left_out():
            return code
        if len(failed) > MOST_UNSTEADY:
            say(f"{len(failed)} tests failed; up to {MOST_UNSTEADY} would be run again")
            return code
        say(f"{len(failed)} test(s) failed and are run again, {TURNS} times, by themselves")
        again = {test: self._passes(test) for test in failed}
        for test, passes in again.items():
            say(f"{'unsteady' if passes else 'failed again'}: {test}")
        return 0 if all(again.values()) else 1

    def _passes(self, test: str) -> bool:
        """Whether it passes by itself, each time."""
        for _ in range(TURNS):
            code, record = self.pytest([test])
            if code != 0 or test not in record.passed():
                return False
        return True

    def pytest(self, arguments: Sequence[str]) -> tuple[int, Record]:
        """Run pytest once; the exit code, which is 1 if not all that was collected has run."""
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        record = Record(folder)
        command = [sys.executable, "-P", "-m", "pytest", f"--record={folder}", *arguments]
        try:
            code = wait(start(command), self._deadline, self._late)
        except Ended as reason:
            say(f"the run {reason} and is ended. These tests were running:")
            tell(record)
            end_all()
            raise
        for left in end_all():
            say(f"left behind by the tests, and ended now: {left}")
        if code == 0 and (tests := record.left_out()):
            say("the run ended early. These tests have not run:", *tests)
            return 1, record
        return code, record


def say(*lines: str) -> None:
    print("scripts/test:", "\n  ".join(lines), flush=True)


def say_costs(record: Record) -> None:
    """Print which files kept the processors busy for longest, and for how long all did."""
    costs = record.costs()
    dearest = sorted(costs, key=lambda path: costs[path].worked, reverse=True)[:MOST_COSTLY]
    worked = sum(cost.worked for cost in costs.values())
    say(
        f"tests used {worked:.0f} s of processor time. The files that used the most, in seconds:",
        *(f"{costs[path].worked:7.1f} of {costs[path].lasted:7.1f}  {path}" for path in dearest),
    )


def tell(record: Record) -> None:
    """Print which tests are running, and where all processes stand."""
    for pid, (test, seconds) in record.running().items() or {0: ("none", 0.0)}.items():
        print(f"  {test} for {seconds:.0f} s, in process {pid}")
    for text in stacks(record):
        print(text, flush=True)


def run(arguments: Sequence[str], limit: float) -> int:
    """Do what the arguments say, for so many seconds at most; the exit code."""
    adopt_orphans()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile the same
    with tempfile.TemporaryDirectory(prefix="test-run-") as folder:
        runs = Runs(Path(folder), limit)
        try:
            if {*arguments} <= {"--quick"}:
                return runs.all_tests(arguments)
            return runs.pytest(arguments)[0]
        except Ended:
            return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], SOAK_LIMIT if "--soak" in sys.argv else LIMIT))
