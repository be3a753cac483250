"""What a script asks for by BottleneckDetectionConfig, and how it is told what was found.

Under torshrun the agents look, and judge; here nothing runs. The agent writes what it has found to
a file beside its status pages, at which this process looks when it begins a step or a section. Any
other process has a thread that compares its steps with their own past.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.recording import own_recording
from torsh_runtime.monitoring.wishes import RESOURCES, Wish, found_file

_log = logging.getLogger("torsh_runtime.monitoring")
_MOST_BYTES = 1 << 20
_OFTEN = 0.1  # seconds between two looks at the file


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


def begin(config: BottleneckDetectionConfig) -> Callable[[], None]:
    """Have it done; what is returned ends the calls of `callback`. Agents go on until their round
    ends. ConfigError where nothing is recorded.
    """
    recording = own_recording()
    if recording is None:
        raise ConfigError(
            "BottleneckDetectionConfig needs what this process records, and TORSH_RECORDER is off"
        )
    try:
        env = WorkerEnv.from_environ(os.environ)
        status_file, rank = env.status_file, env.rank
    except ConfigError:
        status_file, rank = "", 0
    if not status_file:
        from torsh_runtime.monitoring.own_past import OwnPast

        return OwnPast(config, rank).stop
    recording.notebook.take_name(config.wish.named())
    if config.callback is None or not config.enable_notifications:
        return lambda: None
    return _observe(Findings(found_file(status_file), config.callback))


def _observe(findings: Findings) -> Callable[[], None]:
    from torsh_runtime.monitoring.marks import own_marks

    marks = own_marks()
    marks.observe(findings)
    return lambda: marks.observe(findings, ends=True)


class Findings:
    """What the agent has found, as this process is told: whenever it begins a step or a section."""

    def __init__(self, path: str, callback: Callback) -> None:
        self._path, self._callback = path, callback
        self._read = 0
        self._lock = threading.Lock()
        self._looked = -_OFTEN

    def begin(self, name: str, thread: int) -> None:
        self.look()

    def end(self, name: str, thread: int) -> None:
        """Nothing follows."""

    def step(self, number: int) -> None:
        self.look()

    def look(self) -> None:
        """Call back with what is new, but not too often."""
        now = time.monotonic()
        if now - self._looked < _OFTEN or not self._lock.acquire(blocking=False):
            return
        try:
            self._looked = now
            for found in self._new():
                call(self._callback, found)
        finally:
            self._lock.release()

    def _new(self) -> Iterator[Bottleneck]:
        try:
            if os.stat(self._path).st_size <= self._read:  # noqa: PTH116  (pathlib costs more)
                return
            with open(self._path, "rb") as file:  # noqa: PTH123
                file.seek(self._read)
                content = file.read(_MOST_BYTES)
        except OSError:  # nothing was found yet
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # who wrote it is not known
                told = json.loads(line)
                yield Bottleneck(str(told["event"]), told["facts"], str(told["facts"]["text"]))


def call(callback: Callback, found: Bottleneck) -> None:
    """An error of the callback is logged: the training goes on."""
    try:
        callback(found)
    except Exception:
        _log.exception("the callback of BottleneckDetectionConfig has failed for: %s", found.text)
