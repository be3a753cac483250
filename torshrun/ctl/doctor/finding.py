"""Defines what the doctor finds, and how severe it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Severity = Literal["ok", "note", "warning", "problem"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The severities, least first.

A problem keeps jobs from running. A warning may do so, or makes them slow. A note is worth knowing.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Describes one thing that was examined."""

    what: str
    """The thing that was examined, in a few words."""
    value: str = ""
    """The result in one line for people. It may contain text of other programs."""
    severity: Severity = "ok"
    advice: str = ""
    """The advice what to do about it. Empty only if nothing has to be done."""

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
