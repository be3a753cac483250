"""What the agent decides. Pure: (state, event) -> (state, instructions); no clock, no I/O.

A round is one start of the node's workers. It ends with Diagnosed, and only then may the next
begin. Events of a round that is over change nothing.
"""

from __future__ import annotations

import errno
import signal
from dataclasses import dataclass, replace
from typing import Literal

from torshrun.workers.events import (
    DeadManFired,
    KeeperLost,
    SpawnFailed,
    WorkerExited,
)

SETTLE_SECONDS = 0.2
"""How long to wait after a failure for those that follow from it, or that it follows from."""

EXIT_LOST = 1
"""Exit code when supervision itself failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What does not change during the job."""

    ranks: frozenset[int]
    """The workers of this node."""
    max_restarts: int
    """The budget."""
    grace: float
    """Seconds between asking workers to stop and killing them."""


# ---- states


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Workers run, and none has failed."""

    round: int
    restarts: int
    """How often workers have been restarted so far."""
    alive: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """A worker has failed; others may be about to."""

    round: int
    restarts: int
    alive: frozenset[int]


Cause = Literal["done", "failure", "no start", "signal", "dead man"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """All workers are being stopped."""

    round: int
    restarts: int
    cause: Cause
    code: int = 0
    """The exit code, unless the cause is a failure, whose root cause gives it."""
    stopped_by: int = 0
    """The last signal that asked for a stop; 0 if none did."""
    requests: int = 0
    """How often somebody asked for a stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Nothing is left to do."""

    round: int
    code: int


State = Running | Settling | Stopping | Finished


# ---- events, beside those of the workers


@dataclass(frozen=True, slots=True)
class SettleOver:
    """SETTLE_SECONDS have passed since the instruction Settle."""

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
class Diagnosed:
    """The round is over and its root cause known; comes in the place of GroupStopped."""

    round: int
    code: int
    """The root cause's exit code; 0 if no worker failed."""
    unkillable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InternalError:
    """An event was lost through a mistake of the agent's own."""


Event = (
    WorkerExited
    | SpawnFailed
    | DeadManFired
    | KeeperLost
    | SettleOver
    | StartFailed
    | StopRequested
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
class StopWorkers:
    """Send the signal, kill what is left after `grace` seconds, report Diagnosed."""

    round: int
    signo: int
    grace: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Tell the user about the round's failure and what happens next."""

    round: int
    restarts: int
    restarting: bool
    unkillable: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillDescendants:
    """The keeper is gone: kill what it leaves behind, without it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over on this node."""

    code: int


Instruction = StartWorkers | Settle | StopWorkers | ReportFailure | KillDescendants | Finish
Step = tuple[State, tuple[Instruction, ...]]


def begin(policy: Policy) -> Step:
    """The first round."""
    return _start(policy, 0, 0)


def handle(policy: Policy, state: State, event: Event) -> Step:
    """The next state, and what to do now."""
    if isinstance(state, Finished):
        return state, ()
    if isinstance(event, KeeperLost):  # of whatever round: there is only one keeper
        code = EXIT_LOST
        return Finished(round=state.round, code=code), (KillDescendants(), Finish(code))
    if getattr(event, "round", state.round) != state.round:
        return state, ()
    if isinstance(event, InternalError):  # the keeper, once let go, ends what runs
        return Finished(round=state.round, code=EXIT_LOST), (Finish(EXIT_LOST),)
    if isinstance(event, StopRequested):
        return _on_stop_requested(policy, state, event.signo)
    if isinstance(state, Stopping):
        return _stopping(policy, state, event)
    return _running(policy, state, event)


def _start(policy: Policy, number: int, restarts: int) -> Step:
    state = Running(round=number, restarts=restarts, alive=policy.ranks)
    return state, (StartWorkers(number, restarts),)


def _running(policy: Policy, state: Running | Settling, event: Event) -> Step:
    if isinstance(event, WorkerExited):
        return _on_exit(policy, state, event)
    if isinstance(event, SettleOver) and isinstance(state, Settling):
        return _stop(policy, state, "failure")
    if isinstance(event, SpawnFailed):
        code = 127 if event.errno == errno.ENOENT else 126  # as shells do
        return _stop(policy, state, "no start", code=code)
    if isinstance(event, StartFailed):
        return _stop(policy, state, "no start", code=EXIT_LOST)
    if isinstance(event, DeadManFired):
        return _stop(policy, state, "dead man", code=EXIT_LOST)
    return state, ()


def _on_exit(policy: Policy, state: Running | Settling, event: WorkerExited) -> Step:
    failed = isinstance(state, Settling) or not event.succeeded
    alive = state.alive - {event.rank}
    if not alive:
        return _stop(policy, state, "failure" if failed else "done")
    if failed and isinstance(state, Running):
        settling = Settling(round=state.round, restarts=state.restarts, alive=alive)
        return settling, (Settle(state.round, SETTLE_SECONDS),)
    return replace(state, alive=alive), ()


def _stop(
    policy: Policy,
    state: Running | Settling,
    cause: Cause,
    *,
    code: int = 0,
) -> Step:
    stopping = Stopping(round=state.round, restarts=state.restarts, cause=cause, code=code)
    return stopping, (StopWorkers(state.round, signal.SIGTERM, policy.grace, cause),)


def _on_stop_requested(policy: Policy, state: Running | Settling | Stopping, signo: int) -> Step:
    """The first request stops, the second kills. Workers get the signal itself if it is SIGINT,
    which many scripts catch, else SIGTERM.
    """
    if not isinstance(state, Stopping):
        cause: Cause = "failure" if isinstance(state, Settling) else "signal"
        state = Stopping(round=state.round, restarts=state.restarts, cause=cause)
    state = replace(state, stopped_by=signo, requests=state.requests + 1)
    if state.cause == "done":
        return state, ()
    if state.requests > 1:
        return state, (StopWorkers(state.round, signal.SIGKILL, 0, "signal"),)
    passed_on = signal.SIGINT if signo == signal.SIGINT else signal.SIGTERM
    return state, (StopWorkers(state.round, passed_on, policy.grace, "signal"),)


def _stopping(policy: Policy, state: Stopping, event: Event) -> Step:
    if not isinstance(event, Diagnosed):
        return state, ()
    asked = state.stopped_by if state.cause != "done" else 0
    if state.cause == "failure" and event.code and not event.unkillable and not asked:
        return _after_failure(policy, state, event)
    code = 128 + asked if asked else state.code
    if state.cause != "done":
        code = code or event.code
    code = code or (EXIT_LOST if event.unkillable else 0)
    report = _report(state, event, restarting=False)
    failed = state.cause == "failure" and event.code
    told = (report,) if event.unkillable or failed else ()
    return Finished(round=state.round, code=code), (*told, Finish(code))


def _after_failure(policy: Policy, state: Stopping, event: Diagnosed) -> Step:
    restarting = state.restarts < policy.max_restarts
    report = _report(state, event, restarting=restarting)
    if not restarting:
        return Finished(round=state.round, code=event.code), (report, Finish(event.code))
    following, instructions = _start(policy, state.round + 1, state.restarts + 1)
    return following, (report, *instructions)


def _report(state: Stopping, event: Diagnosed, *, restarting: bool) -> ReportFailure:
    return ReportFailure(state.round, state.restarts, restarting, event.unkillable)
