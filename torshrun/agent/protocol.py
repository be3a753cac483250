"""What the machine is told and what it says: states, events and instructions. All frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torshrun.workers.events import (
    DeadManFired,
    KeeperLost,
    SpawnFailed,
    WorkerExited,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What does not change during the job."""

    ranks: frozenset[int]
    """The workers of this node."""
    max_restarts: int
    """The budget."""
    grace: float
    """Seconds between asking workers to stop and killing them."""
    backoff: float = 0.0
    """Seconds before the second restart in a row; 0: every restart comes at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A round, and what led to it."""

    round: int = 0
    restarts: int = 0
    """How often workers have been restarted so far."""
    streak: int = 0
    """How many rounds in a row failed soon, up to this one."""
    startup: str = ""
    """How the round before failed at its start; "" if it did not."""
    noticed: frozenset[int] = frozenset()
    """Signals that were passed on to the workers as a notice."""


# ---- states


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Workers run, and none has failed."""

    attempt: Attempt
    alive: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """A worker has failed; others may be about to."""

    attempt: Attempt
    alive: frozenset[int]


Cause = Literal["done", "failure", "hang", "no start", "signal", "dead man"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """All workers are being stopped."""

    attempt: Attempt
    cause: Cause
    code: int = 0
    """The exit code, unless the cause is a failure, whose root cause gives it."""
    stopped_by: int = 0
    """The last signal that asked for a stop; 0 if none did."""
    requests: int = 0
    """How often somebody asked for a stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """No worker runs; the attempt begins after a pause."""

    attempt: Attempt


Outcome = Literal["succeeded", "failed", "hung", "stopped", "preempted", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Nothing is left to do."""

    attempt: Attempt
    code: int
    outcome: Outcome


State = Running | Settling | Stopping | Waiting | Finished


# ---- events, beside those of the workers


@dataclass(frozen=True, slots=True)
class SettleOver:
    """The seconds of the instruction Settle have passed."""

    round: int


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The seconds of the instruction Wait have passed."""

    round: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The round could not be prepared (no port, no directory)."""

    round: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody sent this signal to the agent."""

    signo: int


@dataclass(frozen=True, slots=True)
class Noticed:
    """Somebody sent the agent a signal that is for the workers."""

    signo: int


@dataclass(frozen=True, slots=True)
class Hung:
    """The workers make no progress."""

    round: int
    signo: int
    """What to stop them with."""


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """The round is over and its root cause known; comes in the place of GroupStopped."""

    round: int
    code: int
    """The root cause's exit code; 0 if no worker failed."""
    signo: int = 0
    """The signal that the root cause was killed by; 0 if none."""
    startup: str = ""
    """How it failed, if it did at its start in a way that trying again may not change."""
    seconds: float = 0.0
    """How long the round lasted."""
    unkillable: tuple[str, ...] = ()
    """Processes that outlived SIGKILL, as a person would name them."""
    chance: float = 0.5
    """A random number, 0 <= chance < 1, that varies the pause before a restart."""


@dataclass(frozen=True, slots=True)
class InternalError:
    """An event was lost through a mistake of the agent's own."""


Event = (
    WorkerExited
    | SpawnFailed
    | DeadManFired
    | KeeperLost
    | SettleOver
    | WaitOver
    | StartFailed
    | StopRequested
    | Noticed
    | Hung
    | Diagnosed
    | InternalError
)


# ---- instructions


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Begin a round with all workers of this node."""

    round: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Send SettleOver after so many seconds."""

    round: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Send WaitOver after so many seconds."""

    round: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Send the signal, kill what is left after `grace` seconds, report Diagnosed."""

    round: int
    signo: int
    grace: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class PassOn:
    """Send the signal to all workers, as a notice."""

    signo: int


Sequel = Literal["restart", "no budget", "budget spent", "same start", "stopped", "unkillable"]


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Tell the user about the round's failure and what happens next."""

    round: int
    restarts: int
    sequel: Sequel
    delay: float = 0.0
    """Seconds until the restart."""
    unkillable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KillDescendants:
    """The keeper is gone: kill what it leaves behind, without it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over on this node."""

    code: int


Instruction = (
    StartWorkers | Settle | Wait | StopWorkers | PassOn | ReportFailure | KillDescendants | Finish
)
Step = tuple[State, tuple[Instruction, ...]]
