"""Summarizes a worker's steps since the previous summary, from what it has noted."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Collection, Sequence
from statistics import median

from torsh_runtime.monitoring.analysis import breakdowns, open_sections
from torsh_runtime.monitoring.joining import Call, Held, joined
from torsh_runtime.monitoring.layout import ENTRIES, NOTES
from torsh_runtime.monitoring.notes import Note
from torsh_runtime.monitoring.spans import Source, Span, noted_spans, spans
from torsh_runtime.monitoring.summaries import RankSummary
from torsh_runtime.monitoring.summing import summary_of
from torshrun.health.kernel_facts import Facts, Process
from torshrun.health.recent import Recent

WARM_UP = 3
"""First steps of a worker that do not count: programs load, compile and allocate in them."""


class Pace:
    """Follows one worker's steps."""

    def __init__(self, rank: int, recent: Recent, process: Process) -> None:
        self.rank = rank
        self.step_seconds = 0.0
        """The median of the last steps; 0 before there were any."""
        self._recent, self._process = recent, process
        self._operation = self._note = 0  # the first ones that are still of interest
        self._open: list[Note] = []  # sections that had begun before that
        self._until = -math.inf  # the end of the last step that was told of
        self._facts, self._looked = process.facts(), time.monotonic()
        self._warm = 0
        self._is_noted = False

    def look(self) -> RankSummary | None:
        """Return a summary of the steps since the last reported one; None if there are none.

        Raises OSError.
        """
        latest = self._recent.read(self._operation, self._note)
        held = [*self._open, *latest.notes]
        calls = joined({0: latest})[0]
        source, (found,) = self._spans(calls, held)
        whole = max(self._until, self._whole_from(latest))
        steps = breakdowns(self.rank, calls, held, [each for each in found if each.begin >= whole])
        if not steps:
            return None
        self._until = steps[-1].end
        if source == "notes":
            self._forget(latest, held)
        self.step_seconds = median(step.seconds for step in steps)
        was_warm, self._warm = self._warm >= WARM_UP, self._warm + len(steps)
        facts = self._new_facts()
        return summary_of(steps, calls)._replace(**facts._asdict()) if was_warm else None

    def _spans(
        self, calls: Sequence[Call], held: Sequence[Note]
    ) -> tuple[Source, Collection[Sequence[Span]]]:
        """Return the steps, as spans() has them.

        Seconds count only if an operation has ended in each: who loads or waits for long is in
        none.
        """
        if self._is_noted:
            return "notes", [noted_spans(held)]
        source, found = spans({0: calls}, {0: held})
        self._is_noted = source == "notes"
        if source != "windows":
            return source, found.values()
        moments = sorted(call.left for call in calls)
        return source, [[each for each in found[0] if _any_between(moments, each.begin, each.end)]]

    def _whole_from(self, latest: Held) -> float:
        """Return the moment from which all is held: what is not read in time is overwritten."""
        moments = [-math.inf]
        operations, notes = latest.operations, latest.notes
        if operations and operations[-1].number - self._operation >= ENTRIES:
            moments.append(operations[0].entered)
        if notes and notes[-1].number - self._note >= NOTES:
            moments.append(notes[0].time)
        return max(moments)

    def _forget(self, latest: Held, held: Sequence[Note]) -> None:
        """Forget what was over when the last step ended, so that it is not read again."""
        ended = self._until
        late = [each.number for each in latest.operations if each.left is None or each.left > ended]
        after = max((each.number + 1 for each in latest.operations), default=self._operation)
        self._operation = min(late, default=after)
        self._open = open_sections(each for each in held if each.time < ended)
        self._note = min((each.number for each in latest.notes if each.time >= ended), default=0)

    def _new_facts(self) -> Facts:
        """Return the facts of one step: its share of those since the previous call."""
        now, facts = time.monotonic(), self._process.facts()
        share = self.step_seconds / (now - self._looked) if now > self._looked else 0.0
        new = facts.since(self._facts)
        self._facts, self._looked = facts, now
        return Facts(*(amount * share for amount in new))


def _any_between(moments: Sequence[float], begin: float, end: float) -> bool:
    """Return whether one of these moments, which ascend, is between `begin` and `end`."""
    return bisect_left(moments, begin) < bisect_left(moments, end)
