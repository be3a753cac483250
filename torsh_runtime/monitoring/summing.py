"""Steps of one rank, summed up."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from statistics import fmean, median

from torsh_runtime.monitoring.analysis import Breakdown, mean_of
from torsh_runtime.monitoring.joining import Call
from torsh_runtime.monitoring.summaries import SECTIONS, RankSummary

_MOST = 3.0
"""So many times the median is the most that a single step counts."""
_RARE = 6
"""Of so many steps one, such as with an evaluation, counts no more than the next one."""


def summary_of(steps: Sequence[Breakdown], calls: Sequence[Call]) -> RankSummary:
    """Of some steps of one rank, at least one, among whose calls are these; without what only the
    kernel knows."""
    works = sorted(step.own for step in steps)
    most = min(_MOST * median(works), works[-1 - _rare(len(works))])
    mean = mean_of(steps)
    assert mean is not None
    sections = sorted(mean.sections.items(), key=lambda each: -each[1])
    return RankSummary(
        rank=mean.rank,
        step=mean.step,
        steps=len(steps),
        pattern=_pattern(calls, steps[-1]),
        seconds=mean.seconds,
        own=fmean(min(step.own, most) for step in steps),
        waiting=mean.waiting,
        moving=mean.moving,
        sections=sections[:SECTIONS],
    )


def _rare(count: int) -> int:
    """How many of so many steps may be others than usual."""
    return -(-count // _RARE) if count >= _RARE else 0


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
