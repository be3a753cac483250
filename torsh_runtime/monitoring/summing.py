"""Sums up the steps of one rank."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from statistics import fmean, median

from torsh_runtime.monitoring.analysis import Breakdown, mean_of
from torsh_runtime.monitoring.joining import Call
from torsh_runtime.monitoring.summaries import SECTIONS, RankSummary

_MOST = 3.0
"""The multiple of the median that a single step counts at most."""
_RARE = 6
"""The number of steps of which one, such as with an evaluation, may be longer than the others."""


def summary_of(steps: Sequence[Breakdown], calls: Sequence[Call]) -> RankSummary:
    """Sum up some steps of one rank, at least one, which include these calls.

    The result lacks what only the kernel knows.
    """
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
    """Return how many of `count` steps may be unusual."""
    return -(-count // _RARE) if count >= _RARE else 0


def _pattern(calls: Sequence[Call], step: Breakdown) -> int:
    """Return a number that is equal for ranks with the same calls, whatever their groups."""
    called = {
        (operation.operation, operation.elements, operation.dtype, operation.ranks)
        for call in calls
        if step.begin <= call.entered < step.end
        for operation in (call.operation,)
        if operation.operation != "wait"  # whether a rank waits is a matter of time
    }
    return zlib.crc32(repr(sorted(called)).encode()) & 0xFFFF
