"""Events on their way out: stamped with what is known of the job, and as lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torsh_runtime.events import Event

if TYPE_CHECKING:
    from torshrun.live.line_file import LineFile


class Recorder:
    """Makes events of one job on one node, and lines of them. Belongs to one thread."""

    def __init__(
        self,
        write: Callable[[bytes], None] | None,
        run_id: str,
        node_rank: int = 0,
        clock: Callable[[], float] = time.time,
        file: LineFile | None = None,
    ) -> None:
        """`write` takes whole lines and returns at once; without it, and without a file, nothing is
        told. `clock` gives seconds since 1970.
        """
        self._write = file.put if file else write
        self._file = file
        self._run_id = run_id
        self.node_rank = node_rank
        self._clock = clock

    def record(self, name: str, round_number: int, /, **facts: object) -> None:
        """Tell that this happened, with the facts that torsh_runtime.events.SCHEMA asks for."""
        if self._write is None:
            return
        event = Event(
            name=name,
            time=self._clock(),
            run_id=self._run_id,
            node_rank=self.node_rank,
            round=round_number,
            facts=facts,
        )
        if self._file and (lost := self._file.take_lost()):
            dropped = replace(event, name="events_dropped", facts={"count": lost})
            self._file.put(dropped.to_json(), lost)
        self._write(event.to_json())

    def close(self) -> None:
        """Write what is left; takes bounded time."""
        if self._file:
            self._file.close()
