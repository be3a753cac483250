"""What a script asks for by BottleneckDetectionConfig, and what it is told then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.wishes import RESOURCES, Wish

_log = logging.getLogger("torsh_runtime.monitoring")


@dataclass(frozen=True)
class BottleneckThresholds:
    """From which part on, of 1, a resource of a node counts as used up."""

    cpu_utilization: float = 0.9
    """Of all its processors."""
    memory_utilization: float = 0.8
    network_utilization: float = 0.8
    """Of its busiest interface, where its speed is known."""
    gpu_utilization: float = 0.9
    """Of its busiest GPU, where NVML tells."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value <= 1:
                raise ConfigError(f"{name}={value!r} must be a number, more than 0 and at most 1")


class Bottleneck(NamedTuple):
    """What was found, or is over. `facts` are those of that event, as docs/events.md has them."""

    event: str
    """straggler_found, straggler_gone, resource_exhausted or resource_available."""
    facts: Mapping[str, Any]
    text: str
    """The same in a line."""


Callback = Callable[[Bottleneck], object]


@dataclass(frozen=True)
class BottleneckDetectionConfig:
    """Look for ranks that are slow, and for resources that are used up."""

    detection_interval_ms: float = 5000
    """Milliseconds between two looks, at least 50."""
    thresholds: BottleneckThresholds = field(default_factory=BottleneckThresholds)
    enable_auto_scaling: bool = False
    """Drain the node of a rank that is slow for long if another node waits for a place; else that
    is proposed. With one node nothing follows."""
    enable_notifications: bool = True
    """Tell of it: a line of torshrun's, an event, `torshrun --notify`, and `callback`."""
    callback: Callback | None = None
    """Is called with each Bottleneck, by the thread that begins a step or a section next."""

    def __post_init__(self) -> None:
        interval = self.detection_interval_ms
        if isinstance(interval, bool) or not isinstance(interval, int | float):
            raise ConfigError(f"detection_interval_ms={interval!r} is no number")
        if not 50 <= interval <= 86_400_000:
            raise ConfigError(f"detection_interval_ms={interval} must be 50 or more, up to a day")
        if not isinstance(self.thresholds, BottleneckThresholds):
            raise ConfigError(f"thresholds={self.thresholds!r} must be BottleneckThresholds")
        if self.callback is not None and not callable(self.callback):
            raise ConfigError(f"callback={self.callback!r} cannot be called")

    @property
    def wish(self) -> Wish:
        """What the agent is asked for."""
        limits = {name: getattr(self.thresholds, f"{name}_utilization") for name in RESOURCES}
        seconds = self.detection_interval_ms / 1000
        return Wish(seconds, limits, self.enable_auto_scaling, self.enable_notifications)


def call(callback: Callback, found: Bottleneck) -> None:
    """An error of the callback is logged: the training goes on."""
    try:
        callback(found)
    except Exception:
        _log.exception("the callback of BottleneckDetectionConfig has failed for: %s", found.text)
