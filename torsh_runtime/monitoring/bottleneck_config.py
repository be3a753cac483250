"""Defines a script's BottleneckDetectionConfig, and the Bottleneck that its callback receives."""

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
    """Holds the part, of 1, from which a resource of a node counts as used up.

    Raises:
        ConfigError: For values that are not above 0 and at most 1.

    Example:
        ```python
        thresholds = tr.monitoring.BottleneckThresholds(memory_utilization=0.95)
        config = tr.monitoring.BottleneckDetectionConfig(thresholds=thresholds)
        ```
    """

    cpu_utilization: float = 0.9
    """The limit of all its processors."""
    memory_utilization: float = 0.8
    """The limit of its memory."""
    network_utilization: float = 0.8
    """The limit of its busiest interface, where its speed is known."""
    gpu_utilization: float = 0.9
    """The limit of its busiest GPU, where NVML reports it."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value <= 1:
                raise ConfigError(f"{name}={value!r} must be a number, more than 0 and at most 1")


class Bottleneck(NamedTuple):
    """Reports that a bottleneck was found, or is over.

    Example:
        ```python
        def callback(found: tr.monitoring.Bottleneck) -> None:
            print(found.event, found.text)

        tr.monitoring.start(tr.monitoring.BottleneckDetectionConfig(callback=callback))
        ```
    """

    event: str
    """straggler_found, straggler_gone, resource_exhausted or resource_available."""
    facts: Mapping[str, Any]
    """The event's facts, as in docs/events.md."""
    text: str
    """A line that describes it."""


Callback = Callable[[Bottleneck], object]


@dataclass(frozen=True)
class BottleneckDetectionConfig:
    """Configures the search for ranks that are slow, and for resources that are used up.

    Raises:
        ConfigError: For invalid values.

    Example:
        ```python
        config = tr.monitoring.BottleneckDetectionConfig(detection_interval_ms=1000)
        with tr.monitoring.start(config):
            train()
        ```
    """

    detection_interval_ms: float = 5000
    """Milliseconds between two looks, at least 50."""
    thresholds: BottleneckThresholds = field(default_factory=BottleneckThresholds)
    """The limits of resources."""
    enable_auto_scaling: bool = False
    """Drain the node of a rank that is slow for long if another node waits for a place; else that
    is only proposed. With one node this has no effect."""
    enable_notifications: bool = True
    """Report it: a line of torshrun's, an event, `torshrun --notify`, and `callback`."""
    callback: Callback | None = None
    """Called with each Bottleneck, by the thread that begins a step or a section next."""

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
        """Return the request to the agent."""
        limits = {name: getattr(self.thresholds, f"{name}_utilization") for name in RESOURCES}
        seconds = self.detection_interval_ms / 1000
        return Wish(seconds, limits, self.enable_auto_scaling, self.enable_notifications)


def call(callback: Callback, found: Bottleneck) -> None:
    """Call the callback. Its errors are logged, and the training continues."""
    try:
        callback(found)
    except Exception:
        _log.exception("the callback of BottleneckDetectionConfig has failed for: %s", found.text)
