"""The bars that the collectives are held to, checked row by row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.machine import NEAR
from benchmarks.samples import GLOO, MPIS, Row
from benchmarks.sizes import format_size

_KI, _MI = 2**10, 2**20


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of one row: passed is None where a library was not measured."""

    bar: str
    row: Row
    what: str
    value: float | None
    limit: float
    at_most: bool = False

    @property
    def passed(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "no data"}[self.passed]
        value = "-" if self.value is None else f"{self.value:.2f}"
        sign = "<=" if self.at_most else ">="
        place = f"{self.row.ranks} ranks {format_size(self.row.nbytes)} {self.row.state}"
        return f"({self.bar}) {place}: {self.what} {value} {sign} {self.limit:g}: {verdict}"


def checks(rows: Iterable[Row]) -> list[Check]:
    """Every bar that applies to these rows."""
    return [check for row in rows for check in _of_row(row)]


def _of_row(row: Row) -> list[Check]:
    if row.ranks == 2 and row.nbytes <= 64 * _KI:
        return _two_ranks_small(row)
    if row.ranks == 2 and row.nbytes >= _MI:
        return _two_ranks_large(row)
    return _four_ranks(row) if row.ranks == 4 else []


def _two_ranks_small(row: Row) -> list[Check]:
    return [
        *_against_mpi("a", row, 1.0),
        Check("a", row, "gloo/ours", row.times_faster(GLOO), 30.0),
    ]


def _two_ranks_large(row: Row) -> list[Check]:
    found = [Check("b", row, "gloo/ours", row.times_faster(GLOO), 6.0)]
    if row.nbytes >= 64 * _MI:
        found += _against_mpi("b", row, 2.0)
    if row.nbytes == 256 * _MI and row.state == NEAR:
        found.append(Check("b", row, "ours/memcpy", row.in_memcpys(), 1.8, at_most=True))
    return found


def _four_ranks(row: Row) -> list[Check]:
    return _against_mpi("c", row, 1.5 if row.nbytes <= _MI else 1.0)


def _against_mpi(bar: str, row: Row, limit: float) -> list[Check]:
    """Against each MPI by itself: a bar is not met by beating the only one that was there."""
    return [Check(bar, row, f"{mpi}/ours", row.times_faster(mpi), limit) for mpi in MPIS]


def summary(found: Iterable[Check]) -> str:
    """One line per bar, then every check that did not pass."""
    found = list(found)
    lines = [
        f"bar ({bar}): {_verdict([check for check in found if check.bar == bar])}"
        for bar in sorted({check.bar for check in found})
    ]
    lines += [f"  {check}" for check in found if check.passed is not True]
    return "\n".join(lines) or "no bar applies to these ranks and sizes"


def all_pass(found: Iterable[Check]) -> bool:
    """True if at least one bar applied and every check passed."""
    verdicts = [check.passed for check in found]
    return bool(verdicts) and all(verdicts)


def _verdict(found: list[Check]) -> str:
    passed = sum(check.passed is True for check in found)
    unknown = sum(check.passed is None for check in found)
    word = "pass" if passed == len(found) else "no data" if unknown == len(found) else "FAIL"
    return f"{word} ({passed} of {len(found)} checks, {unknown} without data)"
