"""Examines several areas at once, and reports those that hang or fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torshrun.ctl.doctor.deadlines import all_within
from torshrun.ctl.doctor.finding import Finding, warning

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Examination:
    """Holds the name of an area and the function that examines it."""

    area: str
    findings: Callable[[], tuple[Finding, ...]]


def examination(
    area: str, gather: Callable[[], F], check: Callable[[F], Iterable[Finding]]
) -> Examination:
    """Return an examination whose facts are gathered by I/O, and whose check is pure."""
    return Examination(area, partial(_findings, gather, check))


def _findings(
    gather: Callable[[], F], check: Callable[[F], Iterable[Finding]]
) -> tuple[Finding, ...]:
    return tuple(check(gather()))


def examine(examinations: Sequence[Examination], seconds: float) -> dict[str, tuple[Finding, ...]]:
    """Return the findings by area. An area that hangs or fails has a finding that says so."""
    found = all_within(seconds, {each.area: each.findings for each in examinations})
    return {area: _told(area, findings) for area, findings in found.items()}


def _told(area: str, found: tuple[Finding, ...] | Exception) -> tuple[Finding, ...]:
    if isinstance(found, TimeoutError):
        advice = (
            "A file system, a driver or a name server does not answer. See what hangs (ps shows "
            "D), or allow more time with --timeout."
        )
        return (warning(f"examining {area}", str(found), advice),)
    if isinstance(found, Exception):
        told = f"could not be examined: {type(found).__name__}: {found}"
        return (warning(area, told, "See whether this process may read what it names."),)
    return found
