"""What the agent's HTTP endpoint answers: /metrics and /healthz."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from torshrun.live.snapshot import Snapshot

if TYPE_CHECKING:
    from torshrun.live.prometheus import Exposition

STALL_SECONDS = 5.0
"""An agent whose loop has not beaten for so long does not count as healthy."""


class Answer(NamedTuple):
    """A response, but for its form."""

    status: HTTPStatus
    content_type: str
    body: bytes


class Pages:
    """All pages of one endpoint; for one thread."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._pages = {"/metrics": self._metrics, "/healthz": self._healthz}

    def respond(self, request: bytes) -> bytes:
        """The response to a request, complete up to its empty line or longer than it may be."""
        line, *headers = request.decode("latin-1").splitlines() or [""]
        method, path, protocol = (*line.split(" "), "", "")[:3]
        if not request.endswith((b"\n\r\n", b"\n\n")):
            answer = _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long a request\n")
        elif not path or not protocol.startswith("HTTP/1."):
            answer = _text(HTTPStatus.BAD_REQUEST, "no request of HTTP/1\n")
        elif method not in ("GET", "HEAD"):
            answer = _text(HTTPStatus.NOT_IMPLEMENTED, "only GET and HEAD\n")
        else:
            answer = self._answer(path.partition("?")[0], _value("accept", headers))
        head = (
            f"HTTP/1.0 {answer.status.value} {answer.status.phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            f"Connection: close\r\n\r\n"
        )
        return head.encode("latin-1") + (b"" if method == "HEAD" else answer.body)

    def _answer(self, path: str, accept: str) -> Answer:
        try:
            return self._pages.get(path, self._not_found)(accept)
        except Exception as error:  # told to who asked; nothing that harms the job
            text = f"cannot answer: {type(error).__name__}: {error}\n"
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, text)

    def _metrics(self, accept: str) -> Answer:
        body, content_type = self._exposition.render(accept)
        return Answer(HTTPStatus.OK, content_type, body)

    @cached_property
    def _exposition(self) -> Exposition:
        """Its libraries are heavy: loaded only when somebody asks."""
        from torshrun.live.prometheus import Exposition

        return Exposition(self._snapshot)

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
    facts = ("run_id", "node_rank", "round", "workers", "alive", "restarts", "step")
    return {
        "status": snapshot.state,
        **({"reason": reason} if reason else {}),
        **{name: getattr(snapshot, name) for name in facts},
    }


def _value(name: str, headers: list[str]) -> str:
    """What a header says; "" if it is not there."""
    pairs = (header.partition(":") for header in headers)
    return next((value.strip() for key, _, value in pairs if key.lower() == name), "")


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode("utf-8", "backslashreplace"))
