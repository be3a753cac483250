"""Events on their way out: stamped with what is known of the job, and as lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torsh_runtime.events import Event

if TYPE_CHECKING:
    from torshrun.live.line_file import LineFile


class ConsoleLines:
    """What LineFile is, over `write`, which must return at once and keep all it gets."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def put(self, line: bytes, worth: int = 1) -> None:
        """Hand on the line."""
        self._write(line)

    def take_lost(self) -> int:
        """None."""
        return 0

    def close(self) -> None:
        """Nothing is held back."""


class Recorder:
    """Makes events of one job on one node, and lines of them. Belongs to one thread."""

    def __init__(
        self,
        lines: LineFile | ConsoleLines | None,
        run_id: str,
        node_rank: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without `lines` nothing is told. `clock` gives seconds since 1970."""
        self._lines = lines
        self._run_id = run_id
        self.node_rank = node_rank
        """Rank of the node that tells."""
        self._clock = clock

    def record(self, name: str, round_number: int, /, **facts: object) -> None:
        """Tell that this happened, with the facts that torsh_runtime.events.SCHEMA asks for."""
        if self._lines is None:
            return
        event = Event(
            name=name,
            time=self._clock(),
            run_id=self._run_id,
            node_rank=self.node_rank,
            round=round_number,
            facts=facts,
        )
        lost = self._lines.take_lost()
        if lost:
            dropped = replace(event, name="events_dropped", facts={"count": lost})
            self._lines.put(dropped.to_json(), lost)
        self._lines.put(event.to_json())

    def close(self) -> None:
        """Write what is left; takes bounded time."""
        if self._lines:
            self._lines.close()
