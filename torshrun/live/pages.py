"""What the agent's HTTP endpoint answers. Loads http.server: only when somebody asks."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from torshrun.live.exposition import Exposition
from torshrun.live.snapshot import Snapshot

STALL_SECONDS = 5.0
"""An agent whose loop has not beaten for so long does not count as healthy."""


class Answer(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    content_type: str
    body: bytes


Page = Callable[[str], Answer]
"""Makes an answer, given the Accept header."""


class Site:
    """All pages of one endpoint."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._exposition = Exposition(snapshot)
        self._snapshot = snapshot
        self._pages: Mapping[str, Page] = {"/metrics": self._metrics, "/healthz": self._healthz}

    def answer(self, path: str, accept: str) -> Answer:
        """What to answer to a GET for this path."""
        page = self._pages.get(path.partition("?")[0], self._not_found)
        try:
            return page(accept)
        except Exception as error:  # told to who asked; nothing that harms the job
            text = f"cannot answer: {type(error).__name__}: {error}\n"
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, text)

    def visit(self, connection: socket.socket) -> None:
        """Answer the one request of a connection. OSError if the client goes away."""
        _Handler(self, connection)

    def _metrics(self, accept: str) -> Answer:
        body, content_type = self._exposition.render(accept)
        return Answer(HTTPStatus.OK, content_type, body)

    def _healthz(self, _accept: str) -> Answer:
        snapshot = self._snapshot()
        reason = unhealthy(snapshot, time.monotonic())
        status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
        body = json.dumps(_health(snapshot, reason)).encode() + b"\n"
        return Answer(status, "application/json", body)

    def _not_found(self, _accept: str) -> Answer:
        return _text(HTTPStatus.NOT_FOUND, f"there is only {' and '.join(self._pages)}\n")


def unhealthy(snapshot: Snapshot, now: float) -> str:
    """Why the agent is not well at `now`, in seconds of time.monotonic(); "" if it is."""
    if snapshot.state in ("stopping", "finished"):
        return f"the job is {snapshot.state}"
    age = now - snapshot.heartbeat
    if age > STALL_SECONDS:
        return f"the agent's loop has not beaten for {age:.1f} s"
    return ""


def _health(snapshot: Snapshot, reason: str) -> dict[str, object]:
    told: dict[str, object] = {"status": snapshot.state}
    if reason:
        told["reason"] = reason
    return told | {
        "run_id": snapshot.run_id,
        "node_rank": snapshot.node_rank,
        "round": snapshot.round,
        "workers": snapshot.workers,
        "alive": snapshot.alive,
        "restarts": snapshot.restarts,
        "step": snapshot.step,
    }


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode("utf-8", "backslashreplace"))


class _Handler(BaseHTTPRequestHandler):
    """One request and its response; HTTP/1.0, so the connection ends with it."""

    server_version = "torshrun"
    sys_version = ""
    timeout = STALL_SECONDS

    def __init__(self, site: Site, connection: socket.socket) -> None:
        self._site = site
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]  # no server needed

    def do_GET(self) -> None:
        """The page."""
        self.wfile.write(self._send_head().body)

    def do_HEAD(self) -> None:
        """The page's headers."""
        self._send_head()

    def _send_head(self) -> Answer:
        answer = self._site.answer(self.path, self.headers.get("Accept", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        return answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: stderr is for the job."""
