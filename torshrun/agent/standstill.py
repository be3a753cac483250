"""Determines whether workers made progress before they are stopped by others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torshrun.agent.round import Round
from torshrun.workers.group import WorkerGroup

if TYPE_CHECKING:  # at the start it would take time
    from torshrun.health.detector import Hang, HangDetector, Sample

SECONDS = 10.0
"""Seconds without progress after which workers stand still."""
_BETWEEN = 4.0  # seconds between two looks
_PATIENCE = 30.0


@dataclass(eq=False)
class Standstill:
    """Looks at the workers of a round now and then, which costs next to nothing; ends nothing."""

    group: WorkerGroup

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a round."""
        self._detector: HangDetector | None = None
        self._looked = self.group.loop.time()

    def tick(self, a_round: Round | None) -> None:
        """Look, if it is time to."""
        if a_round and self.group.loop.time() - self._looked >= _BETWEEN:
            self._look(a_round)

    def found(self, a_round: Round | None) -> Hang | None:
        """Return the hang of the workers that are about to be stopped, once.

        Return None if they have made progress of late.
        """
        found = self._look(a_round) if a_round and self._detector else None
        self.begin()
        return found

    def _look(self, a_round: Round) -> Hang | None:
        from torshrun.health.detector import HangDetector

        self._looked = self.group.loop.time()
        if self._detector is None or self.group.pump.stalled:
            self._detector = HangDetector(SECONDS, _PATIENCE)
        return self._detector.observe(self._looked, self._samples(a_round))

    def _samples(self, a_round: Round) -> Sequence[Sample]:
        """Return a sample of each worker.

        Processes that it started are left out: to find those takes time.
        """
        from torshrun import procfs
        from torshrun.health.detector import Sample

        workers, statuses = self.group.workers, a_round.pages.read()
        stats = [procfs.read_stat(worker.pid) if worker.alive else None for worker in workers]
        return [
            Sample(
                rank=worker.rank,
                status=status,
                output=worker.output,
                cpu=stat.cpu if stat else 0.0,
                alive=worker.alive,
                state=stat.state if stat else "",
            )
            for worker, status, stat in zip(workers, statuses, stats, strict=True)
        ]
