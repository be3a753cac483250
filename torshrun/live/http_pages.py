"""Answers requests to the agent's HTTP endpoint: /metrics and /healthz."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING

from torshrun.live.snapshot import Snapshot

if TYPE_CHECKING:
    from torshrun.live.prometheus import Exposition, ReadGpus

STALL_SECONDS = 5.0
"""An agent whose loop has not beaten for this many seconds does not count as healthy."""


Answer = tuple[HTTPStatus, str, bytes]
"""A response, but for its form: its status, content type and body."""


class Pages:
    """Serves all pages of one endpoint; for one thread."""

    def __init__(self, snapshot: Callable[[], Snapshot], gpus: ReadGpus = lambda: ()) -> None:
        self._snapshot = snapshot
        self._gpus = gpus

    def respond(self, request: bytes) -> bytes:
        """Return the response to a request, which ends with its empty line or is too long."""
        line, *headers = request.decode("latin-1").splitlines() or [""]
        method, path, protocol = (*line.split(" "), "", "")[:3]
        if not request.endswith((b"\n\r\n", b"\n\n")):
            answer = _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long a request\n")
        elif not path or not protocol.startswith("HTTP/1."):
            answer = _text(HTTPStatus.BAD_REQUEST, "no request of HTTP/1\n")
        elif method not in ("GET", "HEAD"):
            answer = _text(HTTPStatus.NOT_IMPLEMENTED, "only GET and HEAD\n")
        else:
            pairs = (header.partition(":") for header in headers)
            accept = [value.strip() for key, _, value in pairs if key.lower() == "accept"]
            answer = self._answer(path.partition("?")[0], *accept[:1])
        status, content_type, body = answer
        head = (
            f"HTTP/1.0 {status.value} {status.phrase}\r\n"
            f"Content-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"Connection: close\r\n\r\n"
        )
        return head.encode("latin-1") + (b"" if method == "HEAD" else body)

    def _answer(self, path: str, accept: str = "") -> Answer:
        try:
            if path == "/metrics":
                body, content_type = self._exposition.render(accept)
                return HTTPStatus.OK, content_type, body
            if path == "/healthz":
                return _health(self._snapshot())
        except Exception as error:  # told to who asked; nothing that harms the job
            text = f"cannot answer: {type(error).__name__}: {error}\n"
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        return _text(HTTPStatus.NOT_FOUND, "there is only /metrics and /healthz\n")

    @cached_property
    def _exposition(self) -> Exposition:
        """Create the exposition when it is first asked for, as its libraries are heavy."""
        from torshrun.live.prometheus import Exposition

        return Exposition(self._snapshot, self._gpus)


def unhealthy(snapshot: Snapshot, now: float) -> str:
    """Return why the agent is not well at `now`, in seconds of time.monotonic(); "" if it is."""
    if snapshot.state in ("stopping", "finished"):
        return f"the job is {snapshot.state}"
    age = now - snapshot.heartbeat
    if age > STALL_SECONDS:
        return f"the agent's loop has not beaten for {age:.1f} s"
    return ""


def _health(snapshot: Snapshot) -> Answer:
    reason = unhealthy(snapshot, time.monotonic())
    facts = ("run_id", "node_rank", "round", "workers", "alive", "restarts", "step")
    told = {
        "status": snapshot.state,
        **({"reason": reason} if reason else {}),
        **{name: getattr(snapshot, name) for name in facts},
    }
    status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
    return status, "application/json", json.dumps(told).encode() + b"\n"


def _text(status: HTTPStatus, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", text.encode("utf-8", "backslashreplace")
