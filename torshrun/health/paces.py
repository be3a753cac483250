"""How a worker's steps go: what it has noted, as a RankSummary of the steps since the one before."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from statistics import fmean, median

from torsh_runtime.monitoring.analysis import Breakdown, breakdowns, mean_of, open_sections
from torsh_runtime.monitoring.joining import Call, joined
from torsh_runtime.monitoring.notes import Note
from torsh_runtime.monitoring.spans import spans
from torsh_runtime.monitoring.summaries import SECTIONS, RankSummary
from torshrun.health.kernel_facts import Facts, Process
from torshrun.health.recent import Latest, Recent

WARM_UP = 3
"""So many steps of a worker do not count: programs load, compile and allocate in them."""
_MOST = 3.0
"""So many times the median is the most that a single step counts."""


class Pace:
    """Follows one worker's steps."""

    def __init__(self, rank: int, recent: Recent, process: Process) -> None:
        self.rank = rank
        self.step_seconds = 0.0
        """The last steps' median; 0 before there were any."""
        self._recent, self._process = recent, process
        self._operation = self._note = 0  # the first ones that are still of interest
        self._open: list[Note] = []  # sections that had begun before that
        self._until = -math.inf  # the end of the last step that was told of
        self._facts, self._looked = process.facts(), time.monotonic()
        self._warm = 0

    def look(self) -> RankSummary | None:
        """Of the steps since the last one that was told of; None if there are none. OSError."""
        latest = self._recent.read(self._operation, self._note)
        held = [*self._open, *latest.notes]
        calls = joined({0: latest})[0]
        source, found = spans({0: calls}, {0: held})
        whole = max(self._until, self._whole_from(latest))
        steps = breakdowns(self.rank, calls, held, [each for each in found[0] if each[1] >= whole])
        if not steps:
            return None
        self._until = steps[-1].end
        if source == "notes":
            self._forget(latest, held)
        self.step_seconds = median(step.seconds for step in steps)
        was_warm, self._warm = self._warm >= WARM_UP, self._warm + len(steps)
        facts = self._new_facts()
        return _summary(steps, _pattern(calls, steps[-1]), facts) if was_warm else None

    def _whole_from(self, latest: Latest) -> float:
        """The moment from which on all is held: what is not read in time is overwritten."""
        moments = [-math.inf]
        if latest.operations and latest.operations[0].number > self._operation:
            moments.append(latest.operations[0].entered)
        if latest.notes and latest.notes[0].number > self._note:
            moments.append(latest.notes[0].time)
        return max(moments)

    def _forget(self, latest: Latest, held: Sequence[Note]) -> None:
        """What was over when the last step ended is not read again."""
        ended = self._until
        late = [each.number for each in latest.operations if each.left is None or each.left > ended]
        after = max((each.number + 1 for each in latest.operations), default=self._operation)
        self._operation = min(late, default=after)
        self._open = open_sections(each for each in held if each.time < ended)
        self._note = min((each.number for each in latest.notes if each.time >= ended), default=0)

    def _new_facts(self) -> Facts:
        """Of a step, by what there was of them since they were asked for before."""
        now, facts, before, then = (
            time.monotonic(),
            self._process.facts(),
            self._facts,
            self._looked,
        )
        self._facts, self._looked = facts, now
        share = self.step_seconds / (now - then) if now > then else 0.0
        return Facts(*(amount * share for amount in facts.since(before)))


def _summary(steps: Sequence[Breakdown], pattern: int, facts: Facts) -> RankSummary:
    most = _MOST * median(step.own for step in steps)
    mean = mean_of(steps)
    assert mean is not None
    sections = sorted(mean.sections.items(), key=lambda each: -each[1])
    return RankSummary(
        rank=mean.rank,
        step=mean.step,
        steps=len(steps),
        pattern=pattern,
        seconds=mean.seconds,
        own=fmean(min(step.own, most) for step in steps),
        waiting=mean.waiting,
        moving=mean.moving,
        queued=facts.queued,
        throttled=facts.throttled,
        faults=facts.faults,
        read=facts.read,
        sections=sections[:SECTIONS],
    )


def _pattern(calls: Sequence[Call], step: Breakdown) -> int:
    """The same for ranks that call the same: their groups may be others."""
    called = {
        (operation.operation, operation.elements, operation.dtype, operation.ranks)
        for call in calls
        if step.begin <= call.entered < step.end
        for operation in (call.operation,)
        if operation.operation != "wait"  # whether a rank waits is a matter of time
    }
    return zlib.crc32(repr(sorted(called)).encode()) & 0xFFFF
