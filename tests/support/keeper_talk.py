"""A conversation with a real keeper."""

from __future__ import annotations

import select
import time
from collections.abc import Collection
from pathlib import Path

from torshrun.workers import keeper as k


class Conversation:
    """A keeper, and the reports that it has made."""

    def __init__(self, scratch: Path, namespace: bool = False) -> None:
        self.keeper = k.Keeper.start(str(scratch), namespace)
        self.reports: list[k.Report] = []

    def spawn(
        self,
        worker_id: int,
        argv: list[str],
        cwd: str = "",
        cpus: Collection[int] = (),
        parked: bool = False,
        shares_session: bool = False,
        **environ: str,
    ) -> None:
        self.keeper.spawn(
            worker_id, argv, environ, cwd, (0, 1, 2), cpus,
            parked=parked, shares_session=shares_session,
        )  # fmt: skip

    def arm(self, seconds: float, counts_suspend: bool = False) -> None:
        clock = time.CLOCK_BOOTTIME if counts_suspend else time.CLOCK_MONOTONIC
        self.keeper.arm(time.clock_gettime_ns(clock) + int(seconds * 1e9), counts_suspend)

    def until(self, kind: type, number: int = 1) -> list[k.Report]:
        """Wait for so many reports of this kind; all of it that have come."""
        deadline = time.monotonic() + 10
        while len(self.of(kind)) < number:
            assert time.monotonic() < deadline, self.reports
            waiting = [] if self.keeper.flush() else [self.keeper]
            select.select([self.keeper], waiting, [], 0.1)
            self.reports += self.keeper.receive()
        return self.of(kind)

    def of(self, kind: type) -> list[k.Report]:
        return [report for report in self.reports if isinstance(report, kind)]
