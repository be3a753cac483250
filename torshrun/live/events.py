"""Events on their way out: stamped with what is known of the job, and as lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torsh_runtime.events import Event

if TYPE_CHECKING:
    from torshrun.live.line_file import LineFile


@dataclass(eq=False)
class Recorder:
    """Makes events of one job on one node, and lines of them. Belongs to one thread."""

    run_id: str
    to: LineFile | Callable[[bytes], None] | None
    """Takes whole lines, and returns at once; None: nothing is told."""
    node_rank: int = 0

    def record(self, name: str, round_number: int, /, **facts: object) -> None:
        """Tell that this happened, with the facts that torsh_runtime.events.SCHEMA asks for."""
        if self.to is None:
            return
        event = Event(
            name=name,
            time=time.time(),
            run_id=self.run_id,
            node_rank=self.node_rank,
            round=round_number,
            facts=facts,
        )
        if callable(self.to):
            self.to(event.to_json())
            return
        if lost := self.to.take_lost():
            dropped = replace(event, name="events_dropped", facts={"count": lost})
            self.to.put(dropped.to_json(), lost)
        self.to.put(event.to_json())
