"""What the doctor found, and how much it matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Severity = Literal["ok", "note", "warning", "problem"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The least first. A problem keeps jobs from running; a warning may, or makes them slow; a note is
worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    """What was looked at, in a few words."""
    value: str = ""
    """What was seen, in one line for a person. It may hold what others wrote."""
    severity: Severity = "ok"
    advice: str = ""
    """What to do about it; empty only where there is nothing to be done."""

    def __post_init__(self) -> None:
        if self.severity != "ok" and not self.advice:
            raise ValueError(f"{self.what}: a {self.severity} says what to do")


def ok(what: str, value: str) -> Finding:
    return Finding(what, value)


def note(what: str, value: str, advice: str) -> Finding:
    return Finding(what, value, "note", advice)


def warning(what: str, value: str, advice: str) -> Finding:
    return Finding(what, value, "warning", advice)


def problem(what: str, value: str, advice: str) -> Finding:
    return Finding(what, value, "problem", advice)
