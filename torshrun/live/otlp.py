"""Sends metrics and events to an OpenTelemetry collector, in a thread of its own."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torsh_runtime.events import Event
from torshrun.config.job import Collector
from torshrun.live.snapshot import Snapshot
from torshrun.text import printable

if TYPE_CHECKING:
    from torshrun.live.prometheus import Exposition

FIRST_SECONDS = 1.0
"""After the job's begin, until something is sent for the first time."""
INTERVAL_SECONDS = 10.0
ANSWER_SECONDS = 5.0
"""For which an answer is waited for."""
CLOSE_SECONDS = 2.0
"""For which close() waits until the last numbers are sent, while the collector takes any."""
MOST_EVENTS = 1000
"""Events that wait to be sent; more are left out."""

_WHY_CHARS = 200
_NO_SUCH_PAGE = (404, 405, 501)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is redirected would become a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Exporter:
    """Sends what a snapshot says at intervals, and once more at the end. A collector that takes
    nothing costs the job nothing but one warning.
    """

    def __init__(
        self,
        collector: Collector,
        snapshot: Callable[[], Snapshot],
        complain: Callable[[str], None],
    ) -> None:
        """`complain` takes a line, from any thread."""
        self._collector = collector
        self._snapshot = snapshot
        self._complain = complain
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._takes_events = True
        self._has_complained = self._has_failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torsh-otlp", daemon=True)
        self._opener = urllib.request.build_opener(_NoRedirect)

    def start(self) -> None:
        self._thread.start()

    def record(self, event: Event) -> None:
        """Send it with the next numbers; the oldest of too many is left out."""
        self._events.append(event)

    def close(self) -> None:
        """Send the last numbers, within bounded time."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS / 4 if self._has_failed else CLOSE_SECONDS)

    def _run(self) -> None:
        self._closing.wait(FIRST_SECONDS)
        from torshrun.live.prometheus import Exposition  # heavy: not before workers have started

        exposition = Exposition(self._snapshot)
        while not self._closing.is_set():
            self._send(exposition)
            self._closing.wait(INTERVAL_SECONDS)
        self._send(exposition)

    def _send(self, exposition: Exposition) -> None:
        from torshrun.live.otlp_json import logs_request, metrics_request

        try:
            now, resource = time.time_ns(), self._resource()
            since = _Starts(self._snapshot())
            self._post("metrics", metrics_request(exposition.families(), resource, now, since))
            events = [*self._events] if self._takes_events else []
            if events:
                self._post_events(logs_request(events, resource))
            for _ in events:
                self._events.popleft()
            self._has_failed = False
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._has_failed = True
            why = str(getattr(error, "reason", "") or error or type(error).__name__)
            self._complain_once(printable(why).strip()[:_WHY_CHARS])  # of whoever answers there

    def _post_events(self, body: object) -> None:
        try:
            self._post("logs", body)
        except urllib.error.HTTPError as error:
            if error.code not in _NO_SUCH_PAGE:
                raise
            self._takes_events = False  # such as Prometheus's receiver
            self._complain(
                f"{self._collector.url} takes metrics, but no events (HTTP {error.code})"
            )

    def _post(self, kind: str, body: object) -> None:
        """OSError and others if it is not taken."""
        request = urllib.request.Request(
            f"{self._collector.url}/v1/{kind}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **dict(self._collector.headers)},
        )
        seconds = CLOSE_SECONDS if self._closing.is_set() else ANSWER_SECONDS
        try:
            self._opener.open(request, timeout=seconds).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def _resource(self) -> dict[str, str]:
        now = self._snapshot()
        return {
            "service.name": "torshrun",
            "service.instance.id": f"{now.run_id}/{now.node_rank}",
            "host.name": os.uname().nodename,
            "torsh.run_id": now.run_id,
            "torsh.role": now.role,
        }

    def _complain_once(self, why: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._complain(
                f"warning: no metrics reach {self._collector.url} ({why}); it is tried again every "
                f"{INTERVAL_SECONDS:.0f} s"
            )


class _Starts:
    """From when metrics have been counted: those of workers' notes and records begin anew with each
    round.
    """

    def __init__(self, now: Snapshot) -> None:
        epoch = time.time() - time.monotonic()
        self._job = int((epoch + now.started) * 1e9)
        self._round = int((epoch + (now.noted.since or now.started)) * 1e9)

    def __call__(self, name: str) -> int:
        is_of_round = name.startswith(("torsh_worker_", "torsh_operation_"))
        return self._round if is_of_round and "failures" not in name else self._job
