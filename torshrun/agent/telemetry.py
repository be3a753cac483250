"""What people and programs outside can look at while the job runs."""

from __future__ import annotations

from collections.abc import Sequence

from torsh_runtime.errors import ConfigError
from torsh_runtime.events import EventSink
from torshrun.agent.job_status import JobStatus
from torshrun.config import LaunchConfig
from torshrun.live import MetricsServer, Recorder, Snapshot, StatusLine, open_sink
from torshrun.workers.logs import LogPump


class Telemetry:
    """Events, the metrics' endpoint and the status line, where they are wanted."""

    def __init__(self, config: LaunchConfig, pump: LogPump, color: bool) -> None:
        """Opens files and listens. Raises ConfigError if that cannot be done; nothing is open
        then.
        """
        self.status: JobStatus | None = None
        """What is shown; to be set before open()."""
        self._metrics = MetricsServer(*config.metrics, self._latest) if config.metrics else None
        try:
            self.recorder = Recorder(_sinks(config, pump), config.run_id)
        except ConfigError:
            self._close_metrics()
            raise
        wanted = config.output.status_line == "auto" and pump.shows_status
        self._line = (
            StatusLine(self._latest, pump.width, pump.set_status, color) if wanted else None
        )

    def _latest(self) -> Snapshot:
        assert self.status is not None
        return self.status.latest

    @property
    def is_looked_at(self) -> bool:
        """Whether snapshots are wanted."""
        return self._metrics is not None or self._line is not None

    def open(self) -> None:
        """Let the first visitors in."""
        if self._metrics:
            self._metrics.start()

    def tick(self) -> None:
        """Bring what is shown up to date."""
        if self._line:
            self._line.tick()

    def close(self) -> None:
        """Show nothing any more, within bounded time."""
        if self._line:
            self._line.close()
        self.recorder.close()
        self._close_metrics()

    def _close_metrics(self) -> None:
        if self._metrics:
            self._metrics.close()


def _sinks(config: LaunchConfig, pump: LogPump) -> Sequence[EventSink]:
    if config.events is None:
        return ()
    return (open_sink(config.events, pump.write, lambda text: pump.say(f"torshrun: {text}")),)
