"""Options of start(), for what is done besides the recording, which always runs."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torsh_runtime.errors import ConfigError

LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugConfig:
    """Configures what is recorded and printed about this process.

    Raises:
        ConfigError: For values of other types.

    Example:
        ```python
        config = tr.monitoring.DebugConfig(enable_profiling=True, save_timeline=True)
        with tr.monitoring.start(config):
            train()
        ```
    """

    enable_profiling: bool = False
    """If true, rank 0 prints to stderr how long its steps and sections took, when monitoring
    ends."""
    log_communication: bool = False
    """Log each call of a collective or a message, with its place in the program, at level
    INFO of the logger "torsh_runtime.communication", to stderr if it has no handler."""
    save_timeline: bool = False
    """If true, each rank writes its recording as a Chrome trace when monitoring ends."""
    timeline_file: str = "torsh_timeline.json"
    """File of the trace. With several ranks "torsh_timeline.3.json" is that of rank 3."""
    memory_profiling: bool = False
    """Note the process's memory in each step, and in each section how much memory grew."""
    bottleneck_detection: bool = False
    """A short form of a BottleneckDetectionConfig() beside this one."""

    def __post_init__(self) -> None:
        _check_types(self)
        if not self.timeline_file:
            raise ConfigError("timeline_file is empty: name a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Selects the numbers collected about this process.

    Raises:
        ConfigError: For invalid values.

    Example:
        ```python
        monitoring = tr.monitoring.start(tr.monitoring.MetricsConfig())
        train()
        print(monitoring.metrics()["training/step"])
        ```
    """

    collection_interval_ms: int = 1000
    """Milliseconds that must pass before numbers are read again."""
    enable_system_metrics: bool = True
    """Processor time and memory, which are also noted at a step, once in each interval."""
    enable_communication_metrics: bool = True
    """Calls, bytes and seconds of collectives and messages."""
    enable_training_metrics: bool = True
    """Steps, samples a second, and the arguments of step()."""
    export_prometheus: bool = False
    """Serve the numbers to Prometheus. Under torshrun its agent does, with --metrics-port."""
    prometheus_port: int = 9090
    """Without torshrun, the port of local rank 0 on 127.0.0.1. Local rank k has this port + k."""

    def __post_init__(self) -> None:
        _check_types(self)
        if self.collection_interval_ms < 1:
            raise ConfigError(
                f"collection_interval_ms={self.collection_interval_ms} must be 1 or more"
            )
        if not 1 <= self.prometheus_port <= LAST_PORT:
            raise ConfigError(
                f"prometheus_port={self.prometheus_port} is not a TCP port (1 to {LAST_PORT})"
            )


_TYPES = {"bool": bool, "int": int, "str": str}


def _check_types(config: DebugConfig | MetricsConfig) -> None:
    for field in fields(config):
        value, wanted = getattr(config, field.name), str(field.type)
        if type(value) is not _TYPES[wanted]:
            raise ConfigError(f"{field.name}={value!r} must be of type {wanted}")
