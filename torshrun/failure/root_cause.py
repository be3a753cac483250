"""Holds the result of the search for the root cause of a round's failure. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torshrun.failure.kinds import Diagnosis
from torshrun.text import format_ranks

Certainty = Literal["certain", "likely", "undecided"]
"""certain: the facts allow nothing else. likely: something else is possible, and less so.
undecided: one of those named, and it cannot be told which."""
MOST_EVIDENCE = 10
"""Lines of evidence."""
_SHOWN = 8  # of those that it is undecided between


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The root cause of a round's failure, as far as it can be told."""

    ranks: tuple[int, ...] = ()
    """The ranks to blame, or, if that is undecided, those that may be."""
    nodes: tuple[int, ...] = ()
    """Nodes likewise, by their ranks."""
    certainty: Certainty
    reading: Diagnosis
    how: str = ""
    """The way in which the one to blame ended, in a line; "" is unknown."""
    evidence: tuple[str, ...] = ()
    """The facts from which it is concluded, in lines."""

    @property
    def headline(self) -> str:
        """Return who is to blame, and how it ended, in one line."""
        how = self.how or str(self.reading.kind)
        if not self.ranks and not self.nodes:
            return f"no rank is to blame: {how}"
        if self.certainty == "undecided":
            return f"undecided between {self._either}: {how}"
        surely = "most likely " if self.certainty == "likely" else ""
        return f"{self._all} {surely}failed first: {how}"

    @property
    def summary(self) -> str:
        """Return who is to blame, or may be, and the sort of failure, for lines that tell more."""
        if not self.ranks and not self.nodes:
            return f"no rank: {self.reading.kind}"
        who = self._either if self.certainty == "undecided" else self._all
        return f"{who}: {self.reading.kind}"

    @property
    def _all(self) -> str:
        parts = [format_ranks(self.ranks)] if self.ranks else []
        if self.nodes:
            parts.append(format_ranks(self.nodes).replace("rank", "node", 1))
        return " and ".join(parts)

    @property
    def _either(self) -> str:
        who = [f"rank {rank}" for rank in self.ranks] + [f"node {node}" for node in self.nodes]
        shown, more = who[:_SHOWN], len(who) - _SHOWN
        last = f"{more} others" if more > 0 else shown.pop()
        return f"{', '.join(shown)} and {last}" if shown else last
