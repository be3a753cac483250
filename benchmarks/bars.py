"""Checks figures against bars, which are limits. A check compares one figure with its limit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import machine
from benchmarks.processes import INTERRUPTED
from benchmarks.samples import Row
from benchmarks.sizes import format_size


@dataclass(frozen=True, slots=True)
class Check:
    """Compares one figure with its bar."""

    what: str
    value: float | None
    """The figure; None if it was not measured."""
    limit: float
    at_most: bool = False
    """True if the limit is the largest allowed value, not the smallest."""
    bar: str = ""
    """Name of the bar to which this check belongs."""

    @property
    def passed(self) -> bool | None:
        """Return whether the value is within the limit; None without a value."""
        if self.value is None:
            return None
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "no data"}[self.passed]
        value = "-" if self.value is None else f"{self.value:.4g}"
        return f"{self.what} {value} {'<=' if self.at_most else '>='} {self.limit:g}: {verdict}"


def of_row(
    bar: str, row: Row, what: str, value: float | None, limit: float, at_most: bool = False
) -> Check:
    """Return a check of one row, with the row in its text."""
    case = row.case
    kind = case.operation if case.dtype == "float32" else f"{case.operation} {case.dtype}"
    place = f"{kind}, {case.place} ranks, {format_size(row.nbytes)}, {row.state}"
    return Check(f"{place}: {what}", value, limit, at_most, bar)


def summary(found: Iterable[Check]) -> str:
    """Return one line per bar, then every check that did not pass."""
    found = list(found)
    lines = [
        f"{bar}: {_verdict([check for check in found if check.bar == bar])}"
        for bar in dict.fromkeys(check.bar for check in found)
    ]
    lines += [f"  {check}" for check in found if check.passed is not True]
    return "\n".join(lines) or "no bar applies to what was measured"


def all_pass(found: Iterable[Check]) -> bool:
    """Return whether at least one bar applied and every check passed."""
    verdicts = [check.passed for check in found]
    return bool(verdicts) and all(verdicts)


def conclude(
    options: argparse.Namespace,
    found: Sequence[Check],
    record: Mapping[str, object] | None = None,
    interrupted: bool = False,
) -> int:
    """Write the record if --json asks for it, print the bars if --bars does, and return the exit
    status."""
    if record is not None and options.json:
        whole = {"machine": machine.describe(), **record}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")
    if options.bars:
        print("\n" + summary(found))
    failed = options.bars and not all_pass(found)
    return INTERRUPTED if interrupted else int(failed)


def _verdict(found: list[Check]) -> str:
    passed = sum(check.passed is True for check in found)
    unknown = sum(check.passed is None for check in found)
    word = "pass" if passed == len(found) else "no data" if unknown == len(found) else "FAIL"
    return f"{word} ({passed} of {len(found)} checks, {unknown} without data)"
