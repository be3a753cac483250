"""What the agent decides. Pure: (state, event) -> (state, instructions); no clock, no I/O.

A round is one start of the node's workers. It ends with Diagnosed, and only then may the next
begin. Events of a round that is over change nothing.
"""

from __future__ import annotations

import errno
import signal
from dataclasses import replace

from torshrun import exit_codes
from torshrun.agent.protocol import (
    Attempt,
    Cause,
    Diagnosed,
    Event,
    Finish,
    Finished,
    Hung,
    InternalError,
    KillDescendants,
    Noticed,
    Outcome,
    PassOn,
    Policy,
    ReportFailure,
    Running,
    Sequel,
    Settle,
    SettleOver,
    Settling,
    StartFailed,
    StartWorkers,
    State,
    Step,
    Stopping,
    StopRequested,
    StopWorkers,
    Wait,
    Waiting,
    WaitOver,
)
from torshrun.agent.restart import following, judge, pause
from torshrun.workers.events import DeadManFired, KeeperLost, SpawnFailed, WorkerExited

SETTLE_SECONDS = 0.2
"""How long to wait after a failure for those that follow from it, or that it follows from."""
HUNG_GRACE = 5.0
"""Seconds at most that workers which hang have between the signal and SIGKILL."""
_FIRST_CAUSES = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
"""A worker that one of these killed did not fail because another one had: nothing to wait for."""


def begin(policy: Policy) -> Step:
    """The first round."""
    return _start(policy, Attempt())


def handle(policy: Policy, state: State, event: Event) -> Step:
    """The next state, and what to do now."""
    if isinstance(state, Finished):
        return state, ()
    if isinstance(event, KeeperLost):  # of whatever round: there is only one keeper
        done = isinstance(state, Stopping) and state.cause == "done"
        code = 0 if done else exit_codes.LOST
        outcome: Outcome = "succeeded" if done else "lost"
        return _finish(state.attempt, code, outcome, KillDescendants())
    if getattr(event, "round", state.attempt.round) != state.attempt.round:
        return state, ()
    if isinstance(event, InternalError):  # the keeper, once let go, ends what runs
        return _finish(state.attempt, exit_codes.LOST, "lost")
    if isinstance(state, Waiting):
        return _waiting(policy, state, event)
    if isinstance(event, StopRequested):
        return _on_stop_requested(policy, state, event.signo)
    if isinstance(state, Stopping):
        return _stopping(policy, state, event)
    return _running(policy, state, event)


def _start(policy: Policy, attempt: Attempt) -> Step:
    state = Running(attempt=attempt, alive=policy.ranks)
    return state, (StartWorkers(attempt.round, attempt.restarts),)


def _finish(
    attempt: Attempt, code: int, outcome: Outcome, *before: ReportFailure | KillDescendants
) -> Step:
    return Finished(attempt=attempt, code=code, outcome=outcome), (*before, Finish(code))


def _waiting(policy: Policy, state: Waiting, event: Event) -> Step:
    if isinstance(event, StopRequested):
        return _finish(state.attempt, *_end_of_stop(event.signo))
    if isinstance(event, WaitOver):
        return _start(policy, state.attempt)
    return state, ()


def _running(policy: Policy, state: Running | Settling, event: Event) -> Step:
    if isinstance(event, WorkerExited):
        return _on_exit(policy, state, event)
    if isinstance(event, SettleOver) and isinstance(state, Settling):
        return _stop(policy, state, "failure")
    if isinstance(event, Noticed):
        noticed = state.attempt.noticed | {event.signo}
        attempt = replace(state.attempt, noticed=noticed)
        return replace(state, attempt=attempt), (PassOn(event.signo),)
    if isinstance(event, Hung):
        return _on_hung(policy, state, event)
    return _on_no_start(policy, state, event)


def _on_no_start(policy: Policy, state: Running | Settling, event: Event) -> Step:
    if isinstance(event, SpawnFailed):
        return _stop(policy, state, "no start", code=_code_of_no_start(event.errno))
    if isinstance(event, StartFailed):
        return _stop(policy, state, "no start", code=exit_codes.LOST)
    if isinstance(event, DeadManFired):
        return _stop(policy, state, "dead man", code=exit_codes.LOST)
    return state, ()


def _code_of_no_start(number: int) -> int:
    """As a shell has it; what the machine refused (processes, memory, descriptors) is our own."""
    if number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return exit_codes.LOST
    return exit_codes.NOT_FOUND if number == errno.ENOENT else exit_codes.CANNOT_EXECUTE


def _on_exit(policy: Policy, state: Running | Settling, event: WorkerExited) -> Step:
    failed = isinstance(state, Settling) or not event.succeeded
    alive = state.alive - {event.rank}
    if not alive:
        return _stop(policy, state, "failure" if failed else "done")
    if event.signo in _FIRST_CAUSES:
        return _stop(policy, state, "failure")
    if failed and isinstance(state, Running):
        settling = Settling(attempt=state.attempt, alive=alive)
        return settling, (Settle(state.attempt.round, SETTLE_SECONDS),)
    return replace(state, alive=alive), ()


def _on_hung(policy: Policy, state: Running | Settling, event: Hung) -> Step:
    stopping = Stopping(attempt=state.attempt, cause="hang", code=exit_codes.HUNG)
    grace = min(policy.grace, HUNG_GRACE)
    return stopping, (StopWorkers(state.attempt.round, event.signo, grace, "hang"),)


def _stop(policy: Policy, state: Running | Settling, cause: Cause, *, code: int = 0) -> Step:
    stopping = Stopping(attempt=state.attempt, cause=cause, code=code)
    return stopping, (StopWorkers(state.attempt.round, signal.SIGTERM, policy.grace, cause),)


def _on_stop_requested(policy: Policy, state: Running | Settling | Stopping, signo: int) -> Step:
    """The first request stops, the second kills. Workers get the signal itself if it is SIGINT,
    which many scripts catch, else SIGTERM.
    """
    if not isinstance(state, Stopping):
        cause: Cause = "failure" if isinstance(state, Settling) else "signal"
        state = Stopping(attempt=state.attempt, cause=cause)
    state = replace(state, stopped_by=signo, requests=state.requests + 1)
    if state.cause == "done":
        return state, ()
    number = state.attempt.round
    if state.requests > 1:
        return state, (StopWorkers(number, signal.SIGKILL, 0, "signal"),)
    passed_on = signal.SIGINT if signo == signal.SIGINT else signal.SIGTERM
    return state, (StopWorkers(number, passed_on, policy.grace, "signal"),)


def _stopping(policy: Policy, state: Stopping, event: Event) -> Step:
    if not isinstance(event, Diagnosed):
        return state, ()
    if state.stopped_by and state.cause != "done":
        return _after_request(state, event)
    if state.cause == "hang" or (state.cause == "failure" and event.code):
        return _after_failure(policy, state, event)
    code = state.code if state.cause == "done" else state.code or event.code
    if not event.unkillable:
        return _finish(state.attempt, code, _outcome(state))
    report = _report(state, event, "unkillable")
    return _finish(state.attempt, code or exit_codes.LOST, "lost", report)


def _outcome(state: Stopping) -> Outcome:
    if state.cause == "done":
        return "succeeded"
    if state.cause == "dead man" or state.code == exit_codes.LOST:
        return "lost"
    return "hung" if state.cause == "hang" else "failed"


def _after_request(state: Stopping, event: Diagnosed) -> Step:
    """Somebody asked for the stop. A failure that had come before is still reported; it gives the
    exit code if the request was to make room, since making room was not what ended the job.
    """
    asked = state.stopped_by
    code, outcome = _end_of_stop(asked)
    expected = {asked, *state.attempt.noticed}  # one of these is no failure
    failed = state.cause == "hang" or (state.cause == "failure" and event.signo not in expected)
    own_code = state.code or (event.code if failed else 0)
    if code == exit_codes.PREEMPTED and own_code:
        code, outcome = own_code, _outcome(state)
    if not failed and not event.unkillable:
        return _finish(state.attempt, code, outcome)
    sequel: Sequel = "unkillable" if event.unkillable else "stopped"
    return _finish(state.attempt, code, outcome, _report(state, event, sequel))


def _end_of_stop(signo: int) -> tuple[int, Outcome]:
    """The exit code and outcome of a job that was asked to stop."""
    if signo == signal.SIGTERM:
        return exit_codes.PREEMPTED, "preempted"
    return exit_codes.SIGNALLED + signo, "stopped"


def _after_failure(policy: Policy, state: Stopping, event: Diagnosed) -> Step:
    if event.signo in state.attempt.noticed:  # it did not handle the notice, which is no fault
        report = _report(state, event, "stopped")
        return _finish(state.attempt, exit_codes.PREEMPTED, "preempted", report)
    sequel = judge(policy, state.attempt, event)
    code = exit_codes.BUDGET_SPENT if sequel == "budget spent" else state.code or event.code
    if sequel != "restart":
        return _finish(state.attempt, code, _outcome(state), _report(state, event, sequel))
    attempt = following(state.attempt, event)
    delay = pause(policy, attempt, event.chance)
    report = _report(state, event, sequel, delay)
    if delay:
        return Waiting(attempt=attempt), (report, Wait(attempt.round, delay))
    started, instructions = _start(policy, attempt)
    return started, (report, *instructions)


def _report(state: Stopping, event: Diagnosed, sequel: Sequel, delay: float = 0.0) -> ReportFailure:
    attempt = state.attempt
    return ReportFailure(attempt.round, attempt.restarts, sequel, delay, event.unkillable)
