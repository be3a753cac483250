"""Provides what people and programs outside can look at while the job runs."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torsh_runtime.events import Event
from torsh_runtime.monitoring.pace import Pace
from torshrun.agent import machine
from torshrun.agent.diagnosis import Findings
from torshrun.config.job import LaunchConfig
from torshrun.health.pages import StatusPages
from torshrun.live.pace import PaceReader
from torshrun.live.snapshot import JobState, Noted, Snapshot
from torshrun.live.status_line import render
from torshrun.rendezvous.base import NodeAssignment
from torshrun.workers.group import WorkerGroup
from torshrun.workers.logs.lines import is_coloured

if TYPE_CHECKING:
    from torshrun.live.noted import Ledger
    from torshrun.live.prometheus import ReadGpus


Sink = Callable[[Event], object]
"""Takes an event, at once."""


class Telemetry:
    """Events, the metrics' endpoint, the status line. Any thread may read the latest snapshot."""

    def __init__(
        self, config: LaunchConfig, group: WorkerGroup, gpus: ReadGpus = lambda: ()
    ) -> None:
        """Open what the job's events are sent to. Raise ConfigError; nothing is open then."""
        self._pump = group.pump
        self._gpus = gpus
        self._group = group
        self.pages: StatusPages | None = None
        """What the workers of the round have noted; None between rounds."""
        self.status_file = ""
        """Where they have; "" before the first round."""
        self.summaries: Mapping[str, bytes] = {}
        """What the agents of all nodes told this one last, by node id, if it leads."""
        self.record: Sink | None = None
        """Takes events; None if nobody wants any."""
        self.latest = Snapshot(
            run_id=config.run_id,
            role=config.role,
            started=time.monotonic(),
            heartbeat=time.monotonic(),
            state="starting",
            pids=(0,) * config.nproc_per_node,
            max_restarts=config.max_restarts,
        )
        self._pace = PaceReader()
        self._ledger: Ledger | None = None
        self._is_asked = bool(config.metrics_port is not None or config.otlp or config.progress)
        self._tells_pace = config.progress is not None
        self._color = is_coloured(config.output, True, os.environ)
        with contextlib.ExitStack() as undo:
            sinks = [*self._open(config, undo)]
            self._closing = undo.pop_all()
        if sinks:
            self.record = lambda event: [sink(event) for sink in sinks]

    def _open(self, config: LaunchConfig, undo: contextlib.ExitStack) -> Iterator[Sink]:
        """Open what the job is reported to, and yield what takes events."""
        pump = self._pump
        if config.metrics_port is not None:
            from torshrun.live.http_pages import Pages
            from torshrun.live.http_server import HttpServer

            server = HttpServer(
                *config.metrics_port, Pages(lambda: self.latest, self._gpus).respond
            )
            undo.callback(server.close)
            server.start()
        if config.events == "-":
            yield lambda event: pump.write(event.to_json())
        elif config.events is not None:
            from torshrun.live.line_file import LineFile

            file = LineFile(config.events, lambda text: pump.say(f"torshrun: {text}"))
            undo.callback(file.close)
            yield file.record
        if config.otlp is not None:
            from torshrun.live.otlp import Exporter

            exporter = Exporter(
                config.otlp,
                lambda: self.latest,
                lambda text: pump.say(f"torshrun: {text}"),
                self._gpus,
            )
            undo.callback(exporter.close)
            exporter.start()
            yield exporter.record
        if config.progress is not None:
            from torshrun.live.train_job import ProgressReporter

            reporter = ProgressReporter(
                config.progress, lambda: self.latest, lambda text: pump.say(f"torshrun: {text}")
            )
            undo.callback(reporter.close)
            reporter.start()
        if self._is_asked:
            from torshrun.live.noted import Ledger

            self._ledger = Ledger()

    def follow(self, state: machine.State) -> None:
        before, attempt = self.latest, state.attempt
        succeeded = isinstance(state, machine.Finished) and state.outcome == "succeeded"
        self._show(
            state=_name_of(state),
            succeeded=succeeded,
            round=attempt.round,
            restarts=attempt.restarts,
        )
        if before != self.latest:  # what follows costs time for each worker
            self._refresh()

    def begin_round(self, place: NodeAssignment) -> None:
        self._show(
            first_rank=place.first_rank, node_rank=place.node_rank, num_nodes=place.num_nodes
        )

    def count_failure(self, found: Findings) -> None:
        """Count a failed round, unless none of its workers failed."""
        if found.kind is not None:
            count = self.latest.failures.get(found.kind, 0) + 1
            failures = {**self.latest.failures, found.kind: count}
            self._show(failures=failures, last_failure=found.summary)

    def tick(self) -> None:
        """Bring what is shown up to date, if anybody looks."""
        width = self._pump.status_width
        if self._is_asked or width:
            self._refresh()
        if width:
            self._pump.set_status(render(self.latest, time.monotonic(), width, color=self._color))

    def close(self) -> None:
        """Show nothing any more, within bounded time."""
        self._closing.close()

    def _refresh(self) -> None:
        pids = [worker.pid if worker.alive else 0 for worker in self._group.workers]
        self._show(
            heartbeat=time.monotonic(),
            pids=tuple(pids) or (0,) * self.latest.workers,
            steps=tuple(status.step for status in self.pages.read()) if self.pages else (),
            status_file=self.status_file,
            pace=self._read_pace(),
            noted=self._noted(),
            output_bytes=self._pump.received,
            standbys=self._group.standbys.count if self._group.standbys else 0,
        )

    def _read_pace(self) -> Pace | None:
        """Return the pace of the worker that is least far.

        Once the job is over, return how far it came.
        """
        is_over = self.latest.state == "finished"
        if not (self._tells_pace or self._pump.status_width):
            return None
        if not self.status_file or (self.pages is None and not is_over):
            return None
        steps = self.latest.steps
        known = [(step, rank) for rank, step in enumerate(steps) if step is not None]
        least = min(known, default=(0, 0))[1]
        now = math.inf if is_over else time.monotonic()
        return self._pace.read(self.status_file, least, now)

    def _noted(self) -> Noted:
        if self._ledger is None or not self.status_file:
            return Noted()
        return self._ledger.read(self.status_file, self.latest.workers)

    def _show(self, **facts: Any) -> None:
        self.latest = replace(self.latest, **facts)


def _name_of(state: machine.State) -> JobState:
    if isinstance(state, machine.Waiting):
        return "restarting" if state.report else "starting"
    if isinstance(state, machine.Finished):
        return "finished"
    well = isinstance(state, machine.Running) and not state.failing
    return "running" if well else "stopping"
