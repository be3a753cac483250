"""Reports the progress of the job to Kubeflow Trainer, which shows it in the TrainJob's status."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from torshrun.config.job import ProgressServer
from torshrun.live.sender import Sender
from torshrun.live.snapshot import Snapshot

MOST_METRICS = 256
"""The most metrics: Kubeflow Trainer refuses more, and longer names, as a whole."""
LONGEST_NAME = 64

_MOST_SECONDS = 2**31 - 1
_MOST_BYTES = 65536
"""The most bytes that are read of a token."""
Status = dict[str, Any]


class ProgressReporter(Sender):
    """Sends the workers' progress by a snapshot, as long as this node has rank 0 and they report
    any.
    """

    def __init__(
        self,
        server: ProgressServer,
        snapshot: Callable[[], Snapshot],
        complain: Callable[[str], None],
    ) -> None:
        """Prepare to report; `complain` takes a line, from any thread."""
        super().__init__("torsh-progress", "steps", server.url, complain)
        self._server = server
        self._snapshot = snapshot
        self._last: Status = {}
        """The status that the server has taken last; it replaces all that it knew."""

    def _send(self) -> bool:
        now = self._snapshot()
        if now.node_rank != 0:
            return bool(self._last)
        status = status_of(now)
        if now.state == "finished" and now.succeeded and self._last:
            status = {**(status or self._last), **_DONE}
        if not status or status == self._last:
            return bool(self._last)
        taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._post(
            self._server.url,
            {"trainerStatus": {**status, "lastUpdatedTime": taken}},
            {"Authorization": f"Bearer {_token(self._server.token_file)}"},
            ssl.create_default_context(cafile=self._server.ca_file or None),
        )
        self._last = status
        return True


_DONE: Mapping[str, int] = {"progressPercentage": 100, "estimatedRemainingSeconds": 0}


def status_of(snapshot: Snapshot) -> Status:
    """Return the TrainJob's trainerStatus without its time. Pure.

    It is empty if the program reports nothing, except that its steps may have been seen: it may
    report to Kubeflow Trainer itself, and the last report counts.
    """
    pace = snapshot.pace
    mine = snapshot.noted.workers[0].scalars if snapshot.noted.workers else {}
    if pace is None or (pace.total is None and not pace.scalars and not mine):
        return {}
    done = pace.step if pace.done is None else pace.done
    metrics: dict[str, float] = {} if done is None else {"current_step": done}
    status: Status = {}
    if pace.total is not None and pace.total > 0:
        metrics["total_steps"] = pace.total
        status = _progress(done or 0, pace.total, pace.per_second)
    metrics |= {**pace.scalars, **mine}
    named = [(name[:LONGEST_NAME], value) for name, value in metrics.items() if name]
    told = [{"name": name, "value": f"{value:.6g}"} for name, value in named[:MOST_METRICS]]
    return {**status, "metrics": told} if told else status


def _progress(done: int, total: int, per_second: float | None) -> Status:
    """Return the progress, with at least 1 % left: only a job that has succeeded is done."""
    left = max(total - done, 0)
    status: Status = {"progressPercentage": min(max(100 * done // total, 0), 99)}
    if per_second is not None and per_second > 0:
        status["estimatedRemainingSeconds"] = int(min(left / per_second, _MOST_SECONDS))
    return status


def _token(path: str) -> str:
    """Read the token anew each time, since it is replaced before it expires.

    Raises ValueError, which does not show the token, if it cannot be sent.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        token = file.read(_MOST_BYTES).decode("latin-1").strip()
    if not re.fullmatch("[!-~]+", token):
        raise ValueError(f"{path} has no token")
    return token
