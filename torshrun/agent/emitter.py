"""Sends lines to people, events to programs, and an account to what started torshrun."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torsh_runtime.events import Event
from torshrun.agent import protocol
from torshrun.config.job import LaunchConfig

if TYPE_CHECKING:
    from torshrun.failure.exits import Exit


class Emitter:
    """Knows the round and the node that events are of. `say` takes whole lines."""

    def __init__(
        self,
        config: LaunchConfig,
        say: Callable[[str], None],
        record: Callable[[Event], object] | None,
    ) -> None:
        """Begin; without `record` there are no events."""
        self._config, self._say, self._record = config, say, record
        self._node_rank = 0
        self.round = 0

    def emit(self, name: str, **facts: object) -> Event:
        """Tell programs of an event of the present round, which is returned."""
        event = Event(
            name=name,
            time=time.time(),
            run_id=self._config.run_id,
            node_rank=self._node_rank,
            round=self.round,
            facts=facts,
        )
        if self._record is not None:
            self._record(event)
        return event

    def say(self, text: str) -> None:
        """Tell people: a line of the agent's own."""
        self._say(f"torshrun: {text}")

    def _tell_above(self, cause: Exit, report: protocol.ReportFailure, text: str) -> None:
        """Write the account that whatever started torshrun reads, unless the job goes on."""
        above = self._config.error_file
        if above and report.sequel not in ("restart", "replace"):
            from torshrun.failure.error_file import write_account

            with contextlib.suppress(OSError):
                write_account(above, cause, time.time(), text)
