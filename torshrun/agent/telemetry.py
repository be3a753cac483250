"""What people and programs outside can look at while the job runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torsh_runtime.events import Event
from torshrun.agent import machine
from torshrun.agent.diagnosis import Findings
from torshrun.config.job import LaunchConfig
from torshrun.live.snapshot import JobState, Snapshot
from torshrun.live.status_line import render
from torshrun.rendezvous.base import Place
from torshrun.workers.logs.lines import is_coloured
from torshrun.workers.logs.pump import LogPump

if TYPE_CHECKING:
    from torshrun.live.http_server import HttpServer
    from torshrun.live.line_file import LineFile


class Telemetry:
    """Events, and where they are wanted the metrics' endpoint and the status line. Snapshots are
    made in the loop's thread; any thread may read the latest.
    """

    def __init__(
        self,
        config: LaunchConfig,
        pump: LogPump,
        pids: Callable[[], Sequence[int]],
        steps: Callable[[], Sequence[int | None]],
    ) -> None:
        """`pids` and `steps` are by local rank. Raises ConfigError; nothing is open then."""
        self._pump = pump
        self._pids = pids
        self._steps = steps
        self.latest = Snapshot(
            run_id=config.run_id,
            role=config.role,
            started=time.monotonic(),
            heartbeat=time.monotonic(),
            state="starting",
            pids=(0,) * config.nproc_per_node,
            max_restarts=config.max_restarts,
        )
        self._server: HttpServer | None = None
        file: LineFile | None = None
        with contextlib.ExitStack() as undo:
            if config.metrics_port is not None:
                from torshrun.live.http_pages import Pages
                from torshrun.live.http_server import HttpServer

                pages = Pages(lambda: self.latest)
                self._server = HttpServer(*config.metrics_port, pages.respond)
                undo.callback(self._server.close)
            if config.events not in (None, "-"):
                from torshrun.live.line_file import LineFile

                file = LineFile(config.events, lambda text: pump.say(f"torshrun: {text}"))
                undo.callback(file.close)
            self._closing = undo.pop_all()
        self.record: Callable[[Event], None] | None = file.record if file else None
        """Takes events; None if nobody wants any."""
        if config.events == "-":
            self.record = lambda event: pump.write(event.to_json())
        self._color = is_coloured(config.output, True, os.environ)

    def open(self) -> None:
        if self._server:
            self._server.start()

    def follow(self, state: machine.State) -> None:
        before, attempt = self.latest, state.attempt
        self._show(state=_name_of(state), round=attempt.round, restarts=attempt.restarts)
        if before != self.latest:  # what follows costs time for each worker
            self._refresh()

    def begin_round(self, place: Place) -> None:
        self._show(
            first_rank=place.first_rank, node_rank=place.node_rank, num_nodes=place.num_nodes
        )

    def count_failure(self, found: Findings) -> None:
        """A round has failed, unless no worker of it did."""
        if found.kind is not None:
            count = self.latest.failures.get(found.kind, 0) + 1
            failures = {**self.latest.failures, found.kind: count}
            self._show(failures=failures, last_failure=found.summary)

    def tick(self) -> None:
        """Bring what is shown up to date, if anybody looks."""
        if self._server or self._pump.shows_status:
            self._refresh()
        if self._pump.shows_status:
            line = render(self.latest, time.monotonic(), self._pump.width(), color=self._color)
            self._pump.set_status(line)

    def close(self) -> None:
        """Show nothing any more, within bounded time."""
        self._closing.close()

    def _refresh(self) -> None:
        self._show(
            heartbeat=time.monotonic(),
            pids=tuple(self._pids()),
            steps=tuple(self._steps()),
            output_bytes=self._pump.received,
        )

    def _show(self, **facts: Any) -> None:
        self.latest = replace(self.latest, **facts)


def _name_of(state: machine.State) -> JobState:
    if isinstance(state, machine.Waiting):
        return "restarting" if state.report else "starting"
    if isinstance(state, machine.Finished):
        return "finished"
    well = isinstance(state, machine.Running) and not state.failing
    return "running" if well else "stopping"
