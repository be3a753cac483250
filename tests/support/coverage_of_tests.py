"""Line coverage by test: as a plugin of pytest it says whose lines are reached, in this process and
in all that it starts; as a program it prints what each test cost, and what it alone reached.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_CONFIG = "COVERAGE_PROCESS_CONFIG"
"""Python processes measure coverage by what this variable says."""
_MOST = 60
"""Tests that are printed."""

Line = tuple[str, int]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Attribute what runs meanwhile to the test. Forks take the name from the object's
    configuration, and programs from the variable.
    """
    measuring = coverage.Coverage.current()
    if measuring is None:
        return (yield)
    measuring.switch_context(item.nodeid)
    measuring.config.context = item.nodeid
    before = os.environ[_CONFIG]
    os.environ[_CONFIG] = measuring.config.serialize()
    try:
        return (yield)
    finally:
        os.environ[_CONFIG] = before
        measuring.config.context = None
        measuring.switch_context("")


def lines_by_test(data: coverage.CoverageData) -> dict[str, set[Line]]:
    """Return the lines that each test reached, in whichever process."""
    found: dict[str, set[Line]] = defaultdict(set)
    for path in data.measured_files():
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                # A process that forks in turn names its test twice.
                found[context.partition("|")[0]].add((path, line))
    return found


def costs(folder: Path) -> dict[str, float]:
    """Return the processor seconds of each test, as `--record` wrote them down."""
    rows = [
        json.loads(line)
        for file in (folder / "record" / "costs").iterdir()
        for line in file.read_text().splitlines()
    ]
    return {name: worked for name, _, worked in rows}


def alone(found: dict[str, set[Line]], spent: dict[str, float]) -> dict[str, int]:
    """Return how many lines each test adds to those that cheaper ones reached."""
    reached: set[Line] = set(found.get("", ()))
    added = {}
    for test in sorted(spent, key=lambda name: spent[name]):
        added[test] = len(found.get(test, set()) - reached)
        reached |= found.get(test, set())
    return added


def main(folder: Path) -> None:
    """Print the costliest tests with what they add, and the costs of all that add nothing."""
    data = coverage.CoverageData(str(folder / "parts" / "data"))
    data.read()
    spent = costs(folder)
    added = alone(lines_by_test(data), spent)
    idle = sum(spent[test] for test, lines in added.items() if lines == 0)
    print(f"{idle:.0f} of {sum(spent.values()):.0f} s went to tests without lines of their own")
    print("seconds  lines that no cheaper test reached")
    for test in sorted(spent, key=lambda name: spent[name], reverse=True)[:_MOST]:
        print(f"{spent[test]:7.1f}  {added[test]:5}  {test}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
