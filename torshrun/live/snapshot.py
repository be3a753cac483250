"""Describes the state of a job on this node at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from torsh_runtime.monitoring.pace import Pace

JobState = Literal["starting", "running", "stopping", "restarting", "finished"]


_NONE: Mapping[str, float] = MappingProxyType({})


class Counted(NamedTuple):
    """Holds what one worker has noted in this round."""

    steps: int = 0
    """Steps that it has begun."""
    samples: float = 0.0
    scalars: Mapping[str, float] = _NONE
    """The last value of each scalar."""
    sections: Mapping[str, float] = _NONE
    """Seconds in each section, with those that it is in."""
    lost: int = 0
    """Notes that were overwritten before they were read."""


class Noted(NamedTuple):
    """Holds what all workers of the node have noted."""

    workers: Sequence[Counted] = ()
    """The workers' counts by local rank."""
    dropped: Mapping[str, int] = MappingProxyType({})
    """The number of names that were left out, of "scalar" and of "section"."""
    since: float = 0.0
    """The time when the round's counting began, in seconds of time.monotonic()."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Describes the state of a job on this node at one moment."""

    run_id: str
    role: str
    started: float
    """The time when the job began, in seconds of time.monotonic()."""
    heartbeat: float
    """The time when the agent's loop made this, in seconds of time.monotonic()."""
    state: JobState
    """restarting: waiting before the next round, or preparing it."""
    succeeded: bool = False
    """True if it has finished without a failure."""
    pids: tuple[int, ...]
    """The workers' process ids by local rank; 0 for one that does not run."""
    steps: tuple[int | None, ...] = ()
    """The last step that each worker reported, by local rank; None, or no entry, is unknown."""
    pace: Pace | None = None
    """The pace of the worker that is furthest behind, if anybody looks; None is unknown."""
    first_rank: int = 0
    """The rank of local rank 0."""
    node_rank: int = 0
    num_nodes: int = 1
    round: int = 0
    restarts: int = 0
    max_restarts: int = 0
    failures: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The number of rounds that have failed so far, by kind of their root cause."""
    last_failure: str = ""
    """The last failure in one line; "" if there was none."""
    status_file: str = ""
    """The file of the round's status pages, beside which operations are recorded; "" is none."""
    standbys: int = 0
    """The number of processes that wait to be workers after a restart."""
    noted: Noted = field(default_factory=Noted)
    """The notes of its workers in this round, if anybody looks."""
    output_bytes: int = 0
    """Bytes of output that workers have written so far, in all rounds."""

    @property
    def workers(self) -> int:
        return len(self.pids)

    @property
    def alive(self) -> int:
        return sum(pid > 0 for pid in self.pids)

    @property
    def step(self) -> int | None:
        """Return the step of the worker that is furthest behind; None if no worker reported any."""
        return min((step for step in self.steps if step is not None), default=None)
