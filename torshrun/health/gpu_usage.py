"""Sums up how busy this node's GPUs are, and whether their driver slows them down. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torshrun.health.gpu_health import GpuReading


class GpuUsage(NamedTuple):
    """Describes the use of the GPUs that workers may use."""

    busiest: float | None
    """The part of the last second in which the busiest one ran kernels, 0 to 1; None is unknown."""
    is_throttled: bool
    """True if one of them is slowed down by heat or for lack of power."""


def usage_of(readings: Sequence[GpuReading]) -> GpuUsage:
    """Return the use of these GPUs; without readings nothing is known."""
    shares = [min(each.utilization, 100) for each in readings if each.utilization is not None]
    busiest = max(shares) / 100 if shares else None
    return GpuUsage(busiest, any(each.is_throttled for each in readings))
