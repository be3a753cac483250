"""What people and programs outside can look at while the job runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torsh_runtime.errors import ConfigError
from torshrun.agent.job_status import JobStatus
from torshrun.config import LaunchConfig
from torshrun.live.events import Recorder
from torshrun.live.snapshot import Snapshot
from torshrun.live.status_line import StatusLine
from torshrun.workers.logs.pump import LogPump

if TYPE_CHECKING:
    from torshrun.live.http_server import HttpServer
    from torshrun.live.line_file import LineFile


class Telemetry:
    """Events, the metrics' endpoint and the status line, where they are wanted."""

    def __init__(self, config: LaunchConfig, pump: LogPump, color: bool) -> None:
        """Opens files and listens. Raises ConfigError if that cannot be done; nothing is open
        then.
        """
        self.status: JobStatus | None = None
        """What is shown; to be set before open()."""
        self._server = _server(config, self._latest)
        try:
            file = _event_file(config, pump)
        except ConfigError:
            self._close_server()
            raise
        write = pump.write if config.events == "-" else None
        self.recorder = Recorder(write, config.run_id, file=file)
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
        return self._server is not None or self._line is not None

    def open(self) -> None:
        """Let the first visitors in."""
        if self._server:
            self._server.start()

    def tick(self) -> None:
        """Bring what is shown up to date."""
        if self._line:
            self._line.tick()

    def close(self) -> None:
        """Show nothing any more, within bounded time."""
        if self._line:
            self._line.close()
        self.recorder.close()
        self._close_server()

    def _close_server(self) -> None:
        if self._server:
            self._server.close()


def _server(config: LaunchConfig, latest: Callable[[], Snapshot]) -> HttpServer | None:
    if config.metrics is None:
        return None
    from torshrun.live.http_pages import Pages
    from torshrun.live.http_server import HttpServer

    return HttpServer(*config.metrics, Pages(latest).respond)


def _event_file(config: LaunchConfig, pump: LogPump) -> LineFile | None:
    if config.events in (None, "-"):
        return None
    from torshrun.live.line_file import LineFile

    return LineFile(config.events, lambda text: pump.say(f"torshrun: {text}"))
