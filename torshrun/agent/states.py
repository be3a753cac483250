"""The states of the machine: see machine.py. All are values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torshrun.agent.protocol import Cause, Instruction
from torshrun.rendezvous import base


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A round, and what led to it."""

    round: int = 0
    since: int = 0
    """The round in which the oldest of its workers were started."""
    restarts: int = 0
    """Number of restarts of workers so far."""
    noticed: frozenset[int] = frozenset()
    """Signals that were passed on to the workers as a notice."""
    refused: bool = False
    """True if a worker's program was refused by join(): it would be after each restart, too."""
    is_dispensable: bool = False
    """True if this node came to others that go on without it, and none of its workers has joined
    them so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """State in which workers run."""

    attempt: Attempt
    alive: frozenset[int]
    """Local ranks, as in all that follows: other nodes may leave or come, and ranks change."""
    failing: bool = False
    """True if a worker has failed; others may be about to."""
    joined: frozenset[int] = frozenset()
    """Ranks that can go on without others: see elastic.join()."""
    fixed: frozenset[int] = frozenset()
    """Ranks that have joined, and can only go on among as many others."""
    lasting: base.Lasting = ""
    """Says what the rendezvous knows of whether all workers here can go on among other nodes."""
    early: frozenset[int] = frozenset()
    """Ranks that had joined, and have left before the last step."""
    fresh: frozenset[int] = frozenset()
    """Ranks that have been replaced, and have not joined yet."""
    failed: frozenset[tuple[int, int]] = frozenset()
    """Ranks whose last replacement has ended by itself before it joined, with its exit status."""
    owed: frozenset[tuple[int, int]] = frozenset()
    """Ranks, with signals that were passed on as a notice before these were replaced."""
    has_deferred: bool = False
    """True if workers hang, and the agent of another node was given time to end that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mending(Running):
    """State in which lost workers are to be replaced, while the survivors leave the round."""

    lost: frozenset[int]
    awaited: frozenset[int]
    """Survivors that have not parked yet. Replacements that have not joined need not."""
    at_commit: bool = False
    """True if they are to finish their step first."""
    told: tuple[base.Standing, bool] | None = None
    """Standing of this node that the rendezvous was told last, and whether workers were lost here;
    None if it was told none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """State in which all workers are being stopped."""

    attempt: Attempt
    cause: Cause
    code: int = 0
    """The exit code if workers did not start, or the dead man came."""
    stopped_by: int = 0
    """The signal that asked for a stop, or SIGINT that insisted; 0 if none did."""
    decided: base.RoundClosing | base.JobOver | None = None
    """Decision of the rendezvous in the meantime about what follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """No worker runs; the rendezvous says what follows."""

    attempt: Attempt = Attempt()
    """The last one, if there was one."""
    report: base.Report | None = None
    """Report of the round before; None before the first one."""
    unkillable: tuple[str, ...] = ()
    """Processes that it left."""
    is_broken: bool = False
    """True if workers failed, and the GPUs here can be used no more."""
    told: bool = False
    """True if the user knows of its failure."""
    settled: bool = False
    """True if it is known that the job continued after it."""
    stopped_by: int = 0
    """The signal that asked for a stop, or SIGINT that insisted; 0 if none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """State in which nothing is left to do."""

    attempt: Attempt
    code: int
    outcome: base.Outcome


State = Running | Stopping | Waiting | Finished
Busy = TypeVar("Busy", Running, Stopping)
Able = TypeVar("Able", Running, Mending)
Step = tuple[State, tuple[Instruction, ...]]
