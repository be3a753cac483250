"""Watches the workers of a round from the agent's loop, and tells when they hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from torshrun.health.detector import Hang, Sample
    from torshrun.health.pages import StatusPages, WorkerStatus

_SHORTEST, _LONGEST = 0.2, 10.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A worker as its agent knows it at the moment."""

    rank: int
    """Its rank in the job."""
    local_rank: int
    """Its page."""
    pid: int
    """Its process; 0 while it is being started or when it has ended."""
    output: int
    """Bytes that have come from its stdout and stderr."""
    alive: bool
    """Whether it has not ended."""


class HangWatch:
    """Looks at one round's workers at a time. All methods belong to the loop's thread."""

    def __init__(
        self, timeout: float, loop: asyncio.AbstractEventLoop, on_hang: Callable[[Hang], None]
    ) -> None:
        """`timeout`: seconds without progress that are a hang; 0 never looks at all. `on_hang` is
        called once at most after each start().
        """
        self._timeout = timeout
        self._loop = loop
        self._on_hang = on_hang
        self._interval = min(max(timeout / 10, _SHORTEST), _LONGEST)
        self._timer: asyncio.TimerHandle | None = None

    def start(
        self,
        workers: Callable[[], Sequence[Watched]],
        pages: StatusPages | None,
        guardian: int = 0,
        stalled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Watch a round, whose workers are what `workers` returns. The pages, None where there are
        none, must stay open until stop(). `guardian` is the pid of the parent of workers and of
        what they left behind, 0 if unknown; while `stalled`, workers may wait for their reader.
        """
        self.stop()
        if self._timeout > 0:
            from torshrun.health.detector import HangDetector

            detector = HangDetector(self._timeout, patience=3 * self._interval + 1)

            def look() -> Hang | None:
                if stalled():
                    detector.forget()
                    return None
                return detector.observe(self._loop.time(), _samples(workers(), pages, guardian))

            self._wait(look)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, look: Callable[[], Hang | None]) -> None:
        self._timer = self._loop.call_later(self._interval, self._look, look)

    def _look(self, look: Callable[[], Hang | None]) -> None:
        hang = look()
        if hang is None:
            self._wait(look)
        else:
            self._timer = None
            self._on_hang(hang)


def _samples(workers: Sequence[Watched], pages: StatusPages | None, guardian: int) -> list[Sample]:
    """What workers have left behind counts for each of them: it is not known whose it is."""
    from torshrun.health import usage

    statuses = pages.read() if pages is not None else ()
    orphans = usage.orphans(guardian, {worker.pid for worker in workers})
    return [_sample(worker, statuses, orphans) for worker in workers]


def _sample(worker: Watched, statuses: Sequence[WorkerStatus], orphans: float) -> Sample:
    from torshrun.health import usage
    from torshrun.health.detector import Sample
    from torshrun.health.pages import WorkerStatus

    known = worker.local_rank < len(statuses)
    used = usage.read(worker.pid if worker.alive else 0)
    return Sample(
        rank=worker.rank,
        status=statuses[worker.local_rank] if known else WorkerStatus(),
        output=worker.output,
        cpu=used.cpu + orphans,
        alive=worker.alive,
        state=used.state,
    )
