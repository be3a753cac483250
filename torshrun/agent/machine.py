"""Decides what the agent does. Pure: (state, event) -> (state, instructions); no clock, no I/O.

A round is one start of the node's workers. It begins when the rendezvous has formed it and ends
with Diagnosed, after which the rendezvous says what follows. Events of a round that is over change
nothing.
"""

from __future__ import annotations

import errno
import math
import signal
from dataclasses import replace
from typing import Literal

from torshrun import exit_codes
from torshrun.agent import mending, protocol
from torshrun.agent.protocol import Cause, Event, Instruction
from torshrun.agent.states import (
    Attempt,
    Busy,
    Finished,
    Mending,
    Running,
    State,
    Step,
    Stopping,
    Waiting,
)
from torshrun.config.job import LaunchConfig
from torshrun.rendezvous import base
from torshrun.rendezvous.restart import REFUSED
from torshrun.signals import FIRST_CAUSES

__all__ = [
    "Attempt",
    "Finished",
    "Mending",
    "Running",
    "State",
    "Stopping",
    "Waiting",
    "handle",
    "summary",
]
SETTLE_SECONDS = 0.2
"""Seconds to wait after a failure for failures that follow from it, or that it follows from."""
HUNG_GRACE = 5.0
"""Seconds at most that workers which hang have between the signal and SIGKILL."""

_PASSED_ON = {signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}
"""Stop requests that workers get as they are, since many catch them; else they get SIGTERM."""
_NO_SIGNAL = 0
"""For workers that have had a notice, and what others leave: they are given time, and not
interrupted.
"""
_MADE_ROOM = exit_codes.PREEMPTED << 8
"""Status, as waitpid gives it, of a worker that ends because of a notice and is to be resumed."""


def summary(state: State) -> tuple[str, str]:
    """Return the state's name, and what led to it, for people who follow the changes."""
    if isinstance(state, Mending):
        return "mending", f"ranks {sorted(state.lost)} are lost"
    if isinstance(state, Running):
        return "failing" if state.failing else "running", ""
    if isinstance(state, Stopping):
        return "stopping", state.cause
    if isinstance(state, Waiting):
        return "waiting", state.report.outcome if state.report else ""
    return "finished", f"{state.outcome}, exit code {state.code}"


def handle(config: LaunchConfig, state: State, event: Event) -> Step:
    if isinstance(state, Finished):
        return state, ()
    if isinstance(event, protocol.KeeperLost):  # of whatever round: there is only one keeper
        return _on_keeper_lost(config, state)
    if _is_past(state, event):
        return state, ()
    if isinstance(event, protocol.InternalError):  # the keeper, once let go, ends what runs
        return _finish(state.attempt, exit_codes.LOST, "lost")
    if isinstance(state, Waiting):
        return _waiting(config, state, event)
    if isinstance(event, base.RoundClosing | base.JobOver):
        return _on_restart_or_end(config, state, event)
    if isinstance(event, protocol.StopRequested):
        return _on_stop_requested(config, state, event.signo)
    if isinstance(state, Stopping):
        return _stopping(config, state, event)
    return _running(config, state, event)


def _is_past(state: Running | Stopping | Waiting, event: Event) -> bool:
    """Return whether an event is of a round whose workers are gone.

    The end of a survivor of the rounds before may have been noted before this round was formed. A
    node that fails while the others form a round hears of that round only by its end.
    """
    attempt = state.attempt
    number = getattr(event, "round", attempt.round)
    if isinstance(event, base.RoundClosing) and not isinstance(state, Running):
        return number < attempt.round
    if isinstance(event, protocol.WorkerEnded):
        return not attempt.since <= number <= attempt.round
    return bool(number != attempt.round)


def _finish(attempt: Attempt, code: int, outcome: base.Outcome, *before: Instruction) -> Step:
    return Finished(attempt=attempt, code=code, outcome=outcome), before


def _on_keeper_lost(config: LaunchConfig, state: State) -> Step:
    done = isinstance(state, Stopping) and state.cause == "done" and config.is_alone
    code = 0 if done else exit_codes.LOST
    return _finish(state.attempt, code, "succeeded" if done else "lost")


# ---- no worker runs


def _waiting(config: LaunchConfig, state: Waiting, event: Event) -> Step:
    if isinstance(event, base.RoundFormed):
        return _start_or_restart_workers(config, state, event)
    if isinstance(event, base.RoundClosing):
        told = _tell_failure(state, "restart", event.delay)
        return replace(state, told=True, settled=True), told
    if isinstance(event, base.JobOver):
        return _end(state, event.verdict)
    if isinstance(event, protocol.StopRequested):
        if not state.stopped_by:
            return replace(state, stopped_by=event.signo), (
                protocol.Leave(*_end_of_stop(event.signo), event.signo),
            )
        if event.signo == signal.SIGINT:
            return _finish(state.attempt, *_end_of_stop(event.signo))
    return state, ()


def _start_or_restart_workers(
    config: LaunchConfig, state: Waiting, event: base.RoundFormed
) -> Step:
    place = event.place
    attempt = Attempt(
        round=place.round,
        since=place.round,
        restarts=place.restarts,
        is_dispensable=place.kept and mending.has_enough_others(config, place),
    )
    if state.stopped_by:  # too late: this node is leaving
        report = base.Report(round=place.round, outcome="stopped")
        return replace(state, attempt=attempt), (protocol.TellRendezvous(report),)
    ranks = frozenset(range(config.nproc_per_node))
    fresh = ranks if place.kept else frozenset[int]()
    lasting: base.Lasting = "any" if place.kept else ""
    running = Running(attempt=attempt, alive=ranks, fresh=fresh, lasting=lasting)
    return running, (protocol.StartWorkers(place),)


def _end(state: Waiting, verdict: base.Verdict) -> Step:
    """End, as the job is over.

    If the job was asked to stop, the last signal determines the exit code. A failure of this node's
    own does if it was asked to make room, since that request did not end it.
    """
    code, outcome, own = verdict.code, verdict.outcome, state.report
    if state.stopped_by and outcome in ("preempted", "stopped"):
        code, outcome = _end_of_stop(state.stopped_by)
    if own and own.code and state.stopped_by and not state.settled and outcome == "preempted":
        code, outcome = own.code, own.ending
    sequel: base.Sequel = verdict.sequel or "stopped"
    return _finish(state.attempt, code, outcome, *_tell_failure(state, sequel))


def _tell_failure(
    state: Waiting, sequel: base.Sequel | Literal["undecided"], delay: float = 0.0
) -> tuple[protocol.ReportFailure, ...]:
    """Return the report of a failure of this node for the user, unless it was made before."""
    if state.told or state.report is None:
        return ()
    has_left = bool(state.unkillable) or state.is_broken
    if state.report.outcome not in ("failed", "hung", "noticed") and not has_left:
        return ()
    if state.report.outcome == "noticed" and not state.report.signo and not state.unkillable:
        return ()  # a worker that says by its exit code that it made room has not failed
    if state.unkillable:
        sequel = "unkillable"
    elif state.is_broken:
        sequel = "broken"
    elif sequel != "restart" and (state.stopped_by or state.report.outcome == "noticed"):
        sequel = "stopped"
    return (protocol.ReportFailure(state.attempt.restarts, sequel, delay, state.unkillable),)


# ---- workers run


def _running(config: LaunchConfig, state: Running, event: Event) -> Step:
    if isinstance(state, Mending):
        return _mending(config, state, event)
    if isinstance(event, protocol.Joined | protocol.Left):
        noted, told = mending.tell_lasting(config, mending.joined_or_left(state, event))
        return noted, (*told, *mending.owed_notices(state, event))
    if isinstance(event, base.RoundOver):
        return mending.end_round(config, state, event)
    if isinstance(event, protocol.WorkerEnded):
        is_lost = event.status and mending.is_replaceable(config, state, event)
        if is_lost and mending.can_go_on_without(config, state, event.rank):
            if not mending.fails_repeatedly(state, event):
                return mending.lose(config, state, event)
            stopping, stop = _stop_workers(config, state, "failure")
            unfit = protocol.TellUnfit(event.rank, event.status, state.attempt.is_dispensable)
            return stopping, (unfit, *stop)
        return _on_worker_exit(config, state, event)
    if isinstance(event, protocol.Hung):
        if mending.defers(config, state, event):
            return replace(state, has_deferred=True), (protocol.WatchOn(),)
        culprits = mending.culprits(config, state, event)
        if culprits:
            return state, (protocol.KillWorkers(culprits, is_hang=True),)
    return _running_on(config, state, event)


def _running_on(config: LaunchConfig, state: Running, event: Event) -> Step:
    """Handle what is the same whether or not lost workers are being replaced."""
    if isinstance(event, protocol.Refused):
        return replace(state, attempt=replace(state.attempt, refused=True)), ()
    if isinstance(event, protocol.CopyMissing):
        return _stop_workers(config, state, "failure")
    if isinstance(event, protocol.SettleOver) and state.failing:
        return _stop_workers(config, state, "failure")
    if isinstance(event, protocol.Noticed):
        # One that gets it twice may be at its end by then, where Python handles it no more.
        has_got_it = config.signals_reach_workers and not event.handled_only
        return _noticed(state, event), () if has_got_it else (protocol.PassOn(*event),)
    if isinstance(event, protocol.Hung):
        return _stop_workers(config, state, "hang", signo=event.signo)
    if isinstance(event, protocol.NotStarted):
        code = event.code or _code_of_no_start(event.errno)
        return _stop_workers(config, state, "no start", code=code)
    if isinstance(event, protocol.DeadManFired):
        return _stop_workers(config, state, "dead man", code=exit_codes.LOST)
    return state, ()


def _mending(config: LaunchConfig, state: Mending, event: Event) -> Step:
    if isinstance(event, protocol.ParkingOver):
        return state, (protocol.KillWorkers(tuple(sorted(state.awaited))),)
    if isinstance(event, base.RoundMended):
        return mending.next_round(config, state, event.place)
    if isinstance(event, base.RoundOver):
        return mending.end_round(config, state, event)
    if isinstance(event, protocol.Hung | protocol.SettleOver):
        return state, ()
    if not isinstance(event, mending.Followed):
        return _running_on(config, state, event)
    is_failure = mending.is_failure(config, state, event)
    state = mending.follow(state, event)
    if is_failure or mending.is_hopeless(config, state):
        if state.lost:
            return _stop_workers(config, state, "failure")
        return state, (protocol.TellStanding("unable"),)
    state, lasting = mending.tell_lasting(config, state)
    state, standing = mending.tell(config, state)
    if not isinstance(event, protocol.WorkerEnded):
        return state, (*lasting, *standing)
    hurried, told = mending.hurry(state)  # the others cannot commit without this one
    return hurried, (*told, *lasting, *standing, protocol.StartAhead((event.rank,)))


def _noticed(state: Busy, event: protocol.Noticed) -> Busy:
    noticed = state.attempt.noticed | {event.signo}
    return replace(state, attempt=replace(state.attempt, noticed=noticed))


def _code_of_no_start(number: int) -> int:
    """Return the exit code that a shell gives for a program that could not be started.

    If the machine refused it (processes, memory, descriptors), the code is torshrun's own.
    """
    if number in (0, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return exit_codes.LOST
    return exit_codes.NOT_FOUND if number == errno.ENOENT else exit_codes.CANNOT_EXECUTE


def _on_worker_exit(config: LaunchConfig, state: Running, event: protocol.WorkerEnded) -> Step:
    failed = state.failing or event.status != 0
    alive = state.alive - {event.rank}
    if not alive:
        if not failed:
            stopping, stop = _stop_workers(config, state, "done", signo=_NO_SIGNAL)
            return stopping, (*mending.tell_exited(config, state, event.rank), *stop)
        return _stop_workers(config, state, "failure")
    if state.attempt.noticed and event.status == _MADE_ROOM:
        return _stop_workers(
            config, state, "failure", signo=_NO_SIGNAL
        )  # they all know, and may be saving
    if event.status & 0x7F in FIRST_CAUSES:  # it follows from nothing that there is to wait for
        return _stop_workers(config, state, "failure")
    if not failed:
        told = mending.tell_exited(config, state, event.rank)
        return replace(state, alive=alive), told
    settle = protocol.Settle(state.attempt.round, SETTLE_SECONDS)
    first = not state.failing
    return replace(state, alive=alive, failing=True), (settle,) if first else ()


def _stop_workers(
    config: LaunchConfig, state: Running, cause: Cause, code: int = 0, signo: int = signal.SIGTERM
) -> Step:
    grace = min(config.shutdown_timeout, HUNG_GRACE if cause == "hang" else math.inf)
    stopping = Stopping(attempt=state.attempt, cause=cause, code=code)
    return stopping, (protocol.StopWorkers(signo, grace, cause),)


def _on_restart_or_end(
    config: LaunchConfig, state: Running | Stopping, event: base.RoundClosing | base.JobOver
) -> Step:
    """Handle a decision on what follows while workers still run. The first verdict is final."""
    if isinstance(state, Stopping) and isinstance(state.decided, base.JobOver):
        return state, ()
    if isinstance(state, Stopping):
        return replace(state, decided=event), ()
    cause: Cause = "closing" if isinstance(event, base.RoundClosing) else "verdict"
    knows = bool(state.attempt.noticed) and _is_preempted(event)
    signo = _NO_SIGNAL if knows else signal.SIGTERM
    asked = protocol.StopWorkers(signo, config.shutdown_timeout, cause)
    if state.failing or (isinstance(state, Mending) and state.lost):
        cause = "failure"
    return Stopping(attempt=state.attempt, cause=cause, decided=event), (asked,)


def _is_preempted(event: base.RoundClosing | base.JobOver) -> bool:
    return isinstance(event, base.JobOver) and event.verdict.outcome == "preempted"


def _on_stop_requested(config: LaunchConfig, state: Running | Stopping, signo: int) -> Step:
    """Handle a request to stop: the first one stops, and SIGINT after it kills.

    Later ones change nothing: schedulers repeat theirs, which must not cut the grace period short.
    """
    if not isinstance(state, Stopping):
        cause: Cause = "failure" if state.failing else "signal"
        state = Stopping(attempt=state.attempt, cause=cause)
    first = not state.stopped_by
    if not first and signo != signal.SIGINT:
        return state, ()
    state = replace(state, stopped_by=signo)
    if state.cause == "done":  # what workers have left need not end by itself
        end = signal.SIGTERM if first and config.shutdown_timeout else signal.SIGKILL
        return state, (protocol.StopWorkers(end, 0, "done"),)
    if not first:
        return state, (protocol.StopWorkers(signal.SIGKILL, 0, "signal"),)
    passed_on = signo if signo in _PASSED_ON else signal.SIGTERM
    return state, (
        protocol.StopWorkers(passed_on, config.shutdown_timeout, "signal"),
        protocol.Leave(*_end_of_stop(signo), signo),
    )


def _end_of_stop(signo: int) -> tuple[int, Literal["preempted", "stopped"]]:
    """Return the exit code and outcome of a job that was asked to stop."""
    if signo == signal.SIGTERM:
        return exit_codes.PREEMPTED, "preempted"
    return exit_codes.SIGNALLED + signo, "stopped"


# ---- the end of a round


def _stopping(config: LaunchConfig, state: Stopping, event: Event) -> Step:
    if isinstance(event, protocol.Noticed):  # workers may have died of it before it was told
        return _noticed(state, event), ()
    if not isinstance(event, protocol.Diagnosed):
        return state, ()
    report = _report(config, state, event)
    waiting = Waiting(
        attempt=state.attempt,
        report=report,
        unkillable=event.unkillable,
        is_broken=bool(event.broken) and report.code == exit_codes.GPU_BROKEN,
        stopped_by=state.stopped_by,
    )
    if isinstance(state.decided, base.JobOver):
        return _end(waiting, state.decided.verdict)
    told: tuple[Instruction, ...] = (protocol.TellRendezvous(report),)
    if state.cause == "done" and state.stopped_by:
        told = (*told, protocol.Leave(*_end_of_stop(state.stopped_by), state.stopped_by))
    if not config.is_alone:
        told = (*told, *_tell_failure(waiting, "undecided"))
        waiting = replace(waiting, told=True, settled=state.decided is not None)
    return waiting, told


def _report(config: LaunchConfig, state: Stopping, event: protocol.Diagnosed) -> base.Report:
    found = event.report
    outcome, code = _what_became(config, state, found)
    if event.broken and outcome in ("failed", "hung"):
        outcome, code = "lost", exit_codes.GPU_BROKEN
        found = replace(found, cause=event.broken)
    if event.unkillable:
        outcome, code = "lost", code or (0 if state.stopped_by else exit_codes.LOST)
    cause = found.cause if outcome in ("failed", "hung", "lost") else ""
    follows = found.follows and outcome == "failed"
    startup = REFUSED if state.attempt.refused and outcome == "failed" else found.startup
    found = replace(found, cause=cause, follows=follows, startup=startup)
    return replace(found, outcome=outcome, code=code)


def _what_became(
    config: LaunchConfig, state: Stopping, found: base.Report
) -> tuple[base.ReportOutcome, int]:
    if state.cause == "done":
        return "succeeded", 0
    if state.cause == "hang":
        return "hung", exit_codes.HUNG
    if state.cause == "no start" or (state.cause == "dead man" and config.is_alone):
        return "lost", state.code
    if state.cause != "failure":
        return "stopped", 0
    if not state.stopped_by and _follows_notice(state.attempt, found):
        return "noticed", exit_codes.PREEMPTED
    if state.stopped_by and found.signo in (state.stopped_by, *state.attempt.noticed):
        return "stopped", 0
    if state.attempt.is_dispensable and not (state.stopped_by or state.decided):
        return "lost", found.code
    return "failed", found.code


def _follows_notice(attempt: Attempt, found: base.Report) -> bool:
    """Return whether a worker made room because of a notice.

    It says so by its exit code, or did not handle the signal, which is no fault.
    """
    if found.signo:
        return found.signo in attempt.noticed
    return bool(attempt.noticed) and found.code == exit_codes.PREEMPTED
