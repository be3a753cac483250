"""What a group of workers tells the agent. Each event names the round that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process has ended."""

    round: int
    rank: int
    succeeded: bool


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """A worker's program could not be started, and trying again will not help."""

    round: int
    rank: int
    errno: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupStopped:
    """No process of the round is left, but for the unkillable; its output has been passed on."""

    round: int
    unkillable: tuple[int, ...]
    """Pids that outlived SIGKILL."""


@dataclass(frozen=True, slots=True)
class DeadManFired:
    """The keeper killed all workers, because the agent did not renew its lease in time."""

    round: int


@dataclass(frozen=True, slots=True)
class KeeperLost:
    """The keeper is gone, and direct workers with it. No more events come from the group."""

    round: int


WorkerEvent = WorkerExited | SpawnFailed | GroupStopped | DeadManFired | KeeperLost
