"""Numbers about this process, read when somebody asks or a step begins."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.config import MetricsConfig
from torsh_runtime.monitoring.layout import tallies_of
from torsh_runtime.monitoring.marks import Marks
from torsh_runtime.monitoring.memory_use import resident
from torsh_runtime.monitoring.notes import notes_of
from torsh_runtime.monitoring.pace import Pace, pace_of
from torsh_runtime.monitoring.recording import Recording

Numbers = dict[str, float]
"""Numbers by name: "system/cpu_seconds", "communication/all_reduce/calls", "training/step"."""


class Metrics:
    """Reads the numbers that a configuration names. Any thread may use it."""

    def __init__(self, config: MetricsConfig, marks: Marks, recording: Recording | None) -> None:
        self._interval = config.collection_interval_ms / 1e3
        self._marks, self._recording = marks, recording
        kinds: dict[str, tuple[bool, Callable[[], Numbers]]] = {
            "system": (config.enable_system_metrics, _of_system),
            "communication": (config.enable_communication_metrics, self._of_communication),
            "training": (config.enable_training_metrics, self._of_training),
        }
        self._kinds = {name: read for name, (is_wanted, read) in kinds.items() if is_wanted}
        self._lock = threading.Lock()
        self._read_at, self._numbers = float("-inf"), Numbers()
        self._noted_at, self._cpu = time.monotonic(), _cpu_seconds()

    def numbers(self) -> Mapping[str, float]:
        """Return the numbers, which are less than an interval old."""
        with self._lock:
            now = time.monotonic()
            if now - self._read_at >= self._interval:
                self._numbers = {
                    f"{kind}/{name}": value
                    for kind, read in self._kinds.items()
                    for name, value in read().items()
                }
                self._read_at = now
            return self._numbers

    def begin(self, name: str, thread: int) -> None:
        """Do nothing when a section begins."""

    def end(self, name: str, thread: int) -> None:
        """Do nothing when a section ends."""

    def step(self, number: int) -> None:
        """Note the system's numbers, once in each interval."""
        del number
        now = time.monotonic()
        if "system" not in self._kinds or now - self._noted_at < self._interval:
            return
        cpu = _cpu_seconds()
        self._marks.scalar("system/cpu", (cpu - self._cpu) / (now - self._noted_at))
        self._marks.scalar("system/rss", resident())
        self._noted_at, self._cpu = now, cpu

    def _of_communication(self) -> Numbers:
        found: Numbers = {}
        if self._recording is None:
            return found
        for each in tallies_of(self._recording.words()):
            told = (each.calls, each.nbytes, each.seconds, each.waited)
            for name, value in zip(("calls", "bytes", "seconds", "waited"), told, strict=True):
                key = f"{each.operation}/{name}"
                found[key] = found.get(key, 0) + value
        return found

    def _of_training(self) -> Numbers:
        if self._recording is None:
            return {}
        words = self._recording.words()
        pace = pace_of(notes_of(words, self._recording.words()))
        return {name: value for name, value in _told(pace) if value is not None}


def _told(pace: Pace) -> Iterator[tuple[str, float | None]]:
    yield "step", pace.step
    yield "total", None if pace.done is not None else pace.total
    yield "steps_per_second", None if pace.done is not None else pace.per_second
    yield "samples_per_second", pace.samples_per_second
    for name, value in pace.scalars.items():
        if not name.startswith(("system/", "memory/")):  # one of the program's own
            yield f"scalar/{name}", value


def _of_system() -> Numbers:
    found = {"cpu_seconds": _cpu_seconds(), "rss": float(resident())}
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):  # the GPU may be in any state
        if torch is not None and torch.cuda.is_initialized():
            found["gpu_memory"] = float(torch.cuda.memory_allocated())
    return found


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def check_served(env: WorkerEnv) -> None:
    """Raise ConfigError if torshrun does not serve metrics, which the program asks for."""
    if not env.metrics_at:
        raise ConfigError(
            "export_prometheus=True, and torshrun, whose agent serves the metrics of its workers, "
            "serves none: start it with --metrics-port PORT, or leave export_prometheus out"
        )
