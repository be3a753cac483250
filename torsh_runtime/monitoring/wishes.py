"""A worker's request to its agent to look for bottlenecks: a name in its recording that no note
needs.

The name is PREFIX, then interval in milliseconds, the four limits in per mille, and flags, such as
"torsh looks 5000 900 800 800 900 3".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PREFIX = "torsh looks "
RESOURCES = ("cpu", "memory", "network", "gpu")
_REPLACES, _TELLS = 1, 2
_LEAST_SECONDS, _MOST_SECONDS = 0.05, 86400.0


class Wish(NamedTuple):
    """A request to look for stragglers, and for resources that are used up."""

    interval: float
    """Seconds between two looks; 0 leaves it to the agent."""
    limits: Mapping[str, float]
    """The used part from which a resource of RESOURCES counts as used up."""
    replaces: bool
    """True if a node that is slow for long is to make room for one that waits."""
    tells: bool
    """True if people and programs are to be notified."""

    def named(self) -> str:
        """Return the name that stands for this request."""
        limits = (round(1000 * self.limits[name]) for name in RESOURCES)
        flags = _REPLACES * self.replaces + _TELLS * self.tells
        return PREFIX + " ".join(map(str, (round(1000 * self.interval), *limits, flags)))


def wish_in(names: Iterable[str]) -> Wish | None:
    """Return the last request among these names, with its values bounded, or None."""
    found = None
    for name in names:
        words = name.removeprefix(PREFIX).split(" ") if name.startswith(PREFIX) else []
        if len(words) == 6 and all(each.isascii() and each.isdecimal() for each in words):
            milliseconds, *limits, flags = (int(each[:9]) for each in words)
            interval = min(max(milliseconds / 1000, _LEAST_SECONDS), _MOST_SECONDS)
            shares = dict(
                zip(RESOURCES, (min(limit, 1000) / 1000 for limit in limits), strict=True)
            )
            found = Wish(interval, shares, bool(flags & _REPLACES), bool(flags & _TELLS))
    return found


def found_file(status_file: str) -> str:
    """Return the file to which an agent that was asked writes what it has found, a line of JSON
    each."""
    return f"{status_file}.found"
