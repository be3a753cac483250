"""Sends metrics and events to an OpenTelemetry collector."""

from __future__ import annotations

import os
import time
import urllib.error
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from torsh_runtime.events import Event
from torshrun.config.job import Collector
from torshrun.live.sender import Sender
from torshrun.live.snapshot import Snapshot

if TYPE_CHECKING:
    from torshrun.live.prometheus import Exposition, ReadGpus

MOST_EVENTS = 1000
"""Events that wait to be sent; more are left out."""

_NO_SUCH_PAGE = (404, 405, 501)


class Exporter(Sender):
    """Sends what a snapshot says."""

    def __init__(
        self,
        collector: Collector,
        snapshot: Callable[[], Snapshot],
        complain: Callable[[str], None],
        gpus: ReadGpus = lambda: (),
    ) -> None:
        """Prepare to send; `complain` takes a line, from any thread."""
        super().__init__("torsh-otlp", "metrics", collector.url, complain)
        self._collector = collector
        self._snapshot = snapshot
        self._gpus = gpus
        self._exposition: Exposition | None = None
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._takes_events = True

    def record(self, event: Event) -> None:
        """Send the event with the next numbers; the oldest of too many is left out."""
        self._events.append(event)

    def _send(self) -> bool:
        from torshrun.live.otlp_json import logs_request, metrics_request
        from torshrun.live.prometheus import Exposition  # heavy: not before workers have started

        self._exposition = self._exposition or Exposition(self._snapshot, self._gpus)
        now, resource = time.time_ns(), self._resource()
        since = _Starts(self._snapshot())
        families = self._exposition.families()
        self._post_kind("metrics", metrics_request(families, resource, now, since))
        events = [*self._events] if self._takes_events else []
        if events:
            self._post_events(logs_request(events, resource))
        for _ in events:
            self._events.popleft()
        return True

    def _post_events(self, body: object) -> None:
        try:
            self._post_kind("logs", body)
        except urllib.error.HTTPError as error:
            if error.code not in _NO_SUCH_PAGE:
                raise
            self._takes_events = False  # such as Prometheus's receiver
            self._complain(
                f"{self._collector.url} takes metrics, but no events (HTTP {error.code})"
            )

    def _post_kind(self, kind: str, body: object) -> None:
        self._post(f"{self._collector.url}/v1/{kind}", body, dict(self._collector.headers))

    def _resource(self) -> dict[str, str]:
        now = self._snapshot()
        return {
            "service.name": "torshrun",
            "service.instance.id": f"{now.run_id}/{now.node_rank}",
            "host.name": os.uname().nodename,
            "torsh.run_id": now.run_id,
            "torsh.role": now.role,
        }


class _Starts:
    """Tells since when metrics have been counted: those of workers' notes and records begin anew
    with each round.
    """

    def __init__(self, now: Snapshot) -> None:
        epoch = time.time() - time.monotonic()
        self._job = int((epoch + now.started) * 1e9)
        self._round = int((epoch + (now.noted.since or now.started)) * 1e9)

    def __call__(self, name: str) -> int:
        is_of_round = name.startswith(("torsh_worker_", "torsh_operation_"))
        return self._round if is_of_round and "failures" not in name else self._job
