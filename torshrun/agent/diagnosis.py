"""From endings of workers to what the failure room makes of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torshrun import failure
from torshrun.config import OutputConfig
from torshrun.workers.group import Ending
from torshrun.workers.logs import keeps

if TYPE_CHECKING:
    from torshrun.health.pages import WorkerStatus

STARTUP_SECONDS = 10.0
"""A worker that failed within this time, and before any initialised a process group, failed at
its start, as far as can be seen from outside."""
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Diagnosis:
    """Collects the facts about exits."""

    def __init__(self, output: OutputConfig) -> None:
        self._output = output
        self._host = os.uname().nodename
        self.hung: Mapping[int, str] = {}
        """What was found about ranks that hang, in one line each."""

    def exits(
        self, endings: Sequence[Ending], memory: failure.MemoryWatch | None
    ) -> list[failure.Exit]:
        """How the workers of a round ended, in the order in which they did."""
        oom = memory.evidence() if memory and any(map(_may_be_oom, endings)) else None
        return [self._exit(ending, oom) for ending in endings]

    def _exit(self, ending: Ending, oom: failure.OomEvidence | None) -> failure.Exit:
        place = ending.assignment.worker
        kept = keeps(self._output, place.rank, place.local_rank)
        return failure.Exit(
            rank=place.rank,
            host=self._host,
            pid=ending.pid,
            status=ending.status,
            seconds=ending.seconds,
            stopped=ending.stopped,
            stderr=ending.stderr,
            account=failure.load_account(place.error_file) if ending.status else "",
            log=ending.assignment.folder if kept.stdout or kept.stderr else "",
            program=ending.assignment.argv[0],
            peak_rss_kib=ending.peak_rss_kib,
            oom=oom,
            hung=self.hung.get(place.rank, ""),
        )

    def startup(self, cause: failure.Exit | None, statuses: Sequence[WorkerStatus]) -> str:
        """How it failed, if that was at its start and trying again may not change it; else ""."""
        if cause is None or cause.hung or cause.seconds > STARTUP_SECONDS:
            return ""
        kinds = failure.Kind
        by_chance = (kinds.ADDRESS_IN_USE, kinds.OUT_OF_MEMORY, kinds.PEER_LOST)
        if cause.signo in _FROM_OUTSIDE or failure.kind(cause) in by_chance:
            return ""
        if any(status.initialised for status in statuses):
            return ""
        return failure.fingerprint(cause)


def _may_be_oom(ending: Ending) -> bool:
    return ending.status != 0
