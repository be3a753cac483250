"""What a group of workers tells the agent. Each event names the round that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupStarted:
    """Every worker's program runs."""

    round: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process has ended."""

    round: int
    rank: int
    status: int
    """As waitpid gives it."""

    @property
    def succeeded(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.status == 0

    @property
    def signo(self) -> int:
        """The signal that killed it; 0 if none did."""
        return self.status & 0x7F


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """A worker's program could not be started, and trying again will not help."""

    round: int
    rank: int
    errno: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkersKilled:
    """The grace is over: workers that still run are killed."""

    round: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupStopped:
    """No process of the round is left, but for the unkillable; its output has been passed on."""

    round: int
    unkillable: tuple[str, ...]
    """Processes that outlived SIGKILL, as a person would name them."""


@dataclass(frozen=True, slots=True)
class DeadManFired:
    """The keeper killed all workers, because the agent did not renew its lease in time."""

    round: int


@dataclass(frozen=True, slots=True)
class KeeperLost:
    """The keeper is gone, and direct workers with it. No more events come from the group."""

    round: int


WorkerEvent = (
    GroupStarted
    | WorkerExited
    | SpawnFailed
    | WorkersKilled
    | GroupStopped
    | DeadManFired
    | KeeperLost
)
