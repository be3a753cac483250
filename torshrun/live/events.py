"""Events on their way out: stamped with what is known of the job, and as lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torsh_runtime.events import Event, EventSink
from torshrun.live.line_file import LineFile


class Recorder:
    """Makes events of one job on one node and hands them to sinks. Belongs to one thread."""

    def __init__(
        self,
        sinks: Sequence[EventSink],
        run_id: str,
        node_rank: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives seconds since 1970."""
        self._sinks = tuple(sinks)
        self._run_id = run_id
        self.node_rank = node_rank
        """Rank of the node that tells."""
        self._clock = clock

    def record(self, name: str, round_number: int, /, **facts: object) -> None:
        """Tell that this happened, with the facts that torsh_runtime.events.SCHEMA asks for."""
        if not self._sinks:
            return
        event = Event(
            name=name,
            time=self._clock(),
            run_id=self._run_id,
            node_rank=self.node_rank,
            round=round_number,
            facts=facts,
        )
        for sink in self._sinks:
            sink.emit(event)

    def close(self) -> None:
        """Close the sinks; takes bounded time."""
        for sink in self._sinks:
            sink.close()


class JsonLines:
    """A sink that writes each event as a line of JSON to a file."""

    def __init__(self, path: str, complain: Callable[[str], None]) -> None:
        """Raises ConfigError if the file cannot be written. `complain` is called at most once, from
        any thread, when events are lost later.
        """
        self._file = LineFile(path, complain)

    def emit(self, event: Event) -> None:
        """Write the event when the file takes it."""
        lost = self._file.take_lost()
        if lost:
            self._put(_dropped(event, lost), count=lost)
        self._put(event)

    def _put(self, event: Event, count: int = 1) -> None:
        self._file.put(event.to_json(), count)

    def close(self) -> None:
        """Write what is left, within CLOSE_SECONDS."""
        self._file.close()


class StdoutLines:
    """A sink that hands each event as a line of JSON to `write`, which must return at once."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def emit(self, event: Event) -> None:
        """Hand on the event."""
        self._write(event.to_json())

    def close(self) -> None:
        """Nothing is held back."""


def open_sink(
    target: str, write: Callable[[bytes], None], complain: Callable[[str], None]
) -> EventSink:
    """The sink for --events: `write` takes the lines if the target is "-". Raises ConfigError."""
    return StdoutLines(write) if target == "-" else JsonLines(target, complain)


def _dropped(following: Event, count: int) -> Event:
    return Event(
        name="events_dropped",
        time=following.time,
        run_id=following.run_id,
        node_rank=following.node_rank,
        round=following.round,
        facts={"count": count},
    )
