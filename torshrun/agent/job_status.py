"""How the job stands, kept up to date for those who look from outside."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from torshrun.agent import protocol
from torshrun.agent.diagnosis import Findings
from torshrun.config import LaunchConfig
from torshrun.live.snapshot import JobState, Snapshot
from torshrun.rendezvous.base import Place


class JobStatus:
    """Makes snapshots in the loop's thread; any thread may read the latest."""

    def __init__(
        self,
        config: LaunchConfig,
        pids: Callable[[], Sequence[int]],
        steps: Callable[[], Sequence[int | None]],
        output_bytes: Callable[[], int],
    ) -> None:
        """`pids` and `steps` are by local rank, `output_bytes` counts since the job began."""
        self._config = config
        self._pids = pids
        self._steps = steps
        self._output_bytes = output_bytes
        self._started = time.monotonic()
        self._failures: Counter[str] = Counter()
        self._last_failure = ""
        self._state: JobState = "starting"
        self._attempt = protocol.Attempt()
        self._place: Place | None = None
        self.latest = self._snapshot()

    def follow(self, state: protocol.State) -> None:
        """Take over what the machine knows."""
        before = (self._attempt, self._state)
        self._attempt, self._state = state.attempt, _name_of(state)
        if before != (self._attempt, self._state):  # a snapshot costs time for each worker
            self.refresh()

    def begin_round(self, place: Place) -> None:
        """This node has got a place."""
        self._place = place

    def count_failure(self, found: Findings) -> None:
        """A round has failed, unless no worker of it did."""
        if found.kind is not None:
            self._failures[found.kind] += 1
            self._last_failure = found.summary

    def refresh(self) -> None:
        """Make a new snapshot."""
        self.latest = self._snapshot()

    def _snapshot(self) -> Snapshot:
        config, place = self._config, self._place
        return Snapshot(
            run_id=config.run_id,
            role=config.role,
            started=self._started,
            heartbeat=time.monotonic(),
            state=self._state,
            pids=tuple(self._pids()),
            steps=tuple(self._steps()),
            first_rank=place.first_rank if place else 0,
            node_rank=place.node_rank if place else 0,
            num_nodes=place.num_nodes if place else 1,
            round=self._attempt.round,
            restarts=self._attempt.restarts,
            max_restarts=config.max_restarts,
            failures=dict(self._failures),
            last_failure=self._last_failure,
            output_bytes=self._output_bytes(),
        )


def _name_of(state: protocol.State) -> JobState:
    if isinstance(state, protocol.Waiting):
        return "restarting" if state.report else "starting"
    if isinstance(state, protocol.Finished):
        return "finished"
    well = isinstance(state, protocol.Running) and not state.failing
    return "running" if well else "stopping"
