"""Defines the bars for the launcher."""

from __future__ import annotations

from benchmarks.bars import Check
from benchmarks.launchers import TORSHRUN
from benchmarks.output import Samples, rate_of

FIRST_LINES = 1 / 5
"""Largest time to the first lines, as a share of torchrun's."""
HELP_MS = 150.0
RATE = 100.0
"""Smallest rate of workers' output through a pipe, in MB/s."""
PEAK_MIB = 64.0


def of_start(ours_ms: float | None, theirs_ms: float | None, help_ms: float | None) -> list[Check]:
    """Return the checks of starting, from medians of milliseconds."""
    ratio = ours_ms / theirs_ms if ours_ms and theirs_ms else None
    return [
        Check("first lines, of torchrun's time", ratio, FIRST_LINES, at_most=True),
        Check("--help, ms", help_ms, HELP_MS, at_most=True),
    ]


def of_output(samples: Samples) -> list[Check]:
    """Return the checks of output: the rate through a pipe, and memory and correct lines of all."""
    pipes = ("pipe, 80 B", "pipe, 20 B")
    found = [Check(f"{name}, MB/s", rate_of(samples, name, TORSHRUN), RATE) for name in pipes]
    ours = [sample for key, taken in samples.items() if key[1] == TORSHRUN for sample in taken]
    peak = max((sample.agent_peak_mib for sample in ours), default=None)
    astray = sum(sample.lost + sample.wrong for sample in ours) if ours else None
    return [
        *found,
        Check("agent's peak in any of these, MiB", peak, PEAK_MIB, at_most=True),
        Check("lines lost or wrong in all of these", astray, 0.0, at_most=True),
    ]
