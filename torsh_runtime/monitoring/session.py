"""Provides start(), and ends what it has started."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torsh_runtime import launchers
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.config import LAST_PORT, DebugConfig, MetricsConfig
from torsh_runtime.monitoring.marks import Observer, own_marks
from torsh_runtime.monitoring.recording import own_recording

_log = logging.getLogger("torsh_runtime.monitoring")
_BOTTLENECKS = "BottleneckDetectionConfig"


class Monitoring:
    """Represents what start() has started.

    It continues until stop(), or the end of a block `with tr.monitoring.start(...):`, or of the
    process.

    Example:
        ```python
        monitoring = tr.monitoring.start(tr.monitoring.MetricsConfig())
        train()
        monitoring.stop()
        ```
    """

    def __init__(self, configs: tuple[object, ...]) -> None:
        """Start what the configurations ask for; use start().

        Args:
            configs: As start().

        Raises:
            ConfigError: As start().
        """
        self._kinds = [type(config).__name__ for config in configs]
        self._env, self._pid = _place(), os.getpid()
        self._metrics: Any = None
        self._outputs: list[Callable[[], None]] = []
        self.url = ""
        """URL at which this process serves its metrics; "" is none."""
        for kind in self._kinds:
            if kind in _running() or self._kinds.count(kind) > 1:
                raise ConfigError(
                    f"a {kind} is in force already: call stop() on what start() gave for it first"
                )
        with ExitStack() as undo:
            for config in configs:
                self._begin(config, undo)
            self._ending = undo.pop_all()
        _running().update(self._kinds)
        atexit.register(self.stop)

    def metrics(self) -> Mapping[str, float]:
        """Return this process's present numbers, as its MetricsConfig selects them.

        Their names are such as "training/step" and "communication/all_reduce/calls".

        Raises:
            ConfigError: If there is no MetricsConfig.

        Example:
            ```python
            with tr.monitoring.start(tr.monitoring.MetricsConfig()) as monitoring:
                train()
                print(monitoring.metrics()["training/step"])
            ```
        """
        if self._metrics is None:
            raise ConfigError("start() was given no MetricsConfig")
        found: Mapping[str, float] = self._metrics.numbers()
        return found

    def stop(self) -> None:
        """End the monitoring, and write and print what was asked for.

        Later calls do nothing, nor do those of a forked child.
        """
        ending, self._ending = self._ending, ExitStack()
        outputs, self._outputs = self._outputs, []
        if os.getpid() == self._pid:
            atexit.unregister(self.stop)
            _running().difference_update(self._kinds)
            with ending:
                for write in outputs:
                    write()

    def __enter__(self) -> Monitoring:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin(self, config: Any, undo: ExitStack) -> None:
        if isinstance(config, DebugConfig):
            self._debug(config, undo)
        elif isinstance(config, MetricsConfig):
            self._measure(config, undo)
        elif type(config).__name__ == _BOTTLENECKS:
            _detect(config, undo)
        else:
            raise ConfigError(
                f"start() takes DebugConfig, MetricsConfig and {_BOTTLENECKS}, not {config!r}"
            )

    def _debug(self, config: DebugConfig, undo: ExitStack) -> None:
        if config.save_timeline:
            path = self.timeline_path(config.timeline_file)
            self._outputs.append(partial(save_timeline, path, self._env.rank))
        if config.enable_profiling:
            from torsh_runtime.monitoring.section_times import SectionTimes

            times = SectionTimes()
            self._outputs.append(partial(_print_summary, times.summary, self._env.rank))
            _observe(times, undo)
        if config.memory_profiling:
            from torsh_runtime.monitoring.memory_use import SectionMemory

            _observe(SectionMemory(own_marks()), undo)
        if config.log_communication:
            from torsh_runtime.monitoring.calls import CallLog

            undo.callback(CallLog(self._env.rank).stop)
        if config.bottleneck_detection:
            _detect(None, undo)

    def _measure(self, config: MetricsConfig, undo: ExitStack) -> None:
        from torsh_runtime.monitoring.metrics import Metrics, check_served

        metrics = self._metrics = Metrics(config, own_marks(), own_recording())
        if config.export_prometheus and self._env.status_file:
            check_served(self._env)
            self.url = self._env.metrics_at
        elif config.export_prometheus:
            from torsh_runtime.monitoring.serving import Serving

            port = config.prometheus_port + self._env.local_rank
            if port > LAST_PORT:
                raise ConfigError(
                    f"prometheus_port={config.prometheus_port} leaves local rank "
                    f"{self._env.local_rank} no port: {LAST_PORT} is the last one"
                )
            serving = Serving(metrics, self._env.rank, port)
            self.url = serving.url
            undo.callback(serving.stop)
        _observe(metrics, undo)

    def timeline_path(self, file: str) -> Path:
        """Return the file that this rank's timeline is written to, for the option timeline_file
        `file`.
        """
        path = Path(file)
        if self._env.world_size == 1:
            return path
        packed = path.suffix if path.suffix == ".gz" else ""
        path = path.with_name(path.name.removesuffix(packed))
        return path.with_name(f"{path.stem}.{self._env.rank}{path.suffix}{packed}")


def start(*configs: object) -> Monitoring:
    """Start what the arguments configure.

    It ends when the returned Monitoring is stopped or the process ends. Each rank that calls it
    does so for itself, before or after init_process_group().

    Args:
        *configs: A DebugConfig, a MetricsConfig, a BottleneckDetectionConfig, at most one of each
            kind.

    Returns:
        The monitoring, which is a context manager, too.

    Raises:
        ConfigError: For a kind that is in force already, and for what cannot be done; nothing is
            started then.

    Example:
        ```python
        with tr.monitoring.start(tr.monitoring.DebugConfig(log_communication=True)):
            train()
        ```
    """
    return Monitoring(configs)


@cache
def _running() -> set[str]:
    """Return the kinds of configurations that are in force."""
    return set()


def _place() -> WorkerEnv:
    """Return the place of this process in its job. A process without a launcher is rank 0 of 1."""
    environ = {**os.environ, **launchers.place(os.environ)}
    if "RANK" not in environ:
        environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    return WorkerEnv.from_environ(environ)


def _observe(observer: Observer, undo: ExitStack) -> None:
    marks = own_marks()
    marks.observe(observer)
    undo.callback(partial(marks.observe, observer, ends=True))


def _detect(config: object, undo: ExitStack) -> None:
    """Begin what a BottleneckDetectionConfig says. None stands for one with its defaults."""
    module = import_module("torsh_runtime.monitoring.bottlenecks")
    undo.callback(module.begin(config or getattr(module, _BOTTLENECKS)()))


def _print_summary(summary: Callable[[], str], rank: int) -> None:
    if rank == 0:
        sys.stderr.write(f"{summary()}\n")


def save_timeline(path: Path, rank: int) -> None:
    """Write what this process's recording holds as a Chrome trace, whole or not at all."""
    from torsh_runtime.monitoring.layout import operations_of
    from torsh_runtime.monitoring.notes import groups_of, notes_of
    from torsh_runtime.monitoring.timeline import events_of
    from torsh_runtime.monitoring.trace_events import name_events
    from torsh_runtime.monitoring.trace_file import TraceNotWritten, write_trace

    recording = own_recording()
    if recording is None:
        _log.warning("no timeline is written: TORSH_RECORDER is off")
        return
    words, later = recording.words(), recording.words()
    held = operations_of(words, later), notes_of(words, later), groups_of(words)
    try:
        write_trace(str(path), [*name_events(rank), *events_of(rank, *held)], {"ranks": [rank]})
    except TraceNotWritten as error:
        _log.warning("the timeline %s", error)
