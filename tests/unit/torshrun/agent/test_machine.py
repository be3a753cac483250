"""The machine's decisions, as tables and over random sequences of events."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torshrun import exit_codes
from torshrun.agent import machine
from torshrun.agent import protocol as m
from torshrun.workers.events import DeadManFired, KeeperLost, SpawnFailed, WorkerExited

FAIL = 3 << 8
"""The status of a process that exits with 3."""
POLICY = m.Policy(ranks=frozenset({0, 1}), max_restarts=1, grace=30.0)


def play(
    events: Sequence[m.Event], policy: m.Policy = POLICY
) -> tuple[m.State, list[m.Instruction]]:
    state, instructions = machine.begin(policy)
    carried_out = list(instructions)
    for event in events:
        state, instructions = machine.handle(policy, state, event)
        carried_out += instructions
    return state, carried_out


def finish_code(events: Sequence[m.Event], policy: m.Policy = POLICY) -> int:
    state, instructions = play(events, policy)
    assert isinstance(state, m.Finished)
    assert instructions[-1] == m.Finish(state.code)
    return state.code


def test_it_begins_with_all_workers() -> None:
    assert play([])[1] == [m.StartWorkers(0, 0)]


def test_success_of_all_sweeps_and_finishes_with_0() -> None:
    events = [WorkerExited(0, 0, 0), WorkerExited(0, 1, 0)]
    state, instructions = play(events)
    assert isinstance(state, m.Stopping)
    assert instructions[-1] == m.StopWorkers(0, signal.SIGTERM, 30.0, "done")
    assert finish_code([*events, m.Diagnosed(0, 0)]) == 0


def test_a_failure_settles_before_the_others_are_stopped() -> None:
    state, instructions = play([WorkerExited(0, 1, FAIL)])
    assert isinstance(state, m.Settling)
    assert instructions[-1] == m.Settle(0, machine.SETTLE_SECONDS)
    state, instructions = play([WorkerExited(0, 1, FAIL), m.SettleOver(0)])
    assert instructions[-1] == m.StopWorkers(0, signal.SIGTERM, 30.0, "failure")


def test_settling_ends_at_once_when_nobody_is_left() -> None:
    _, instructions = play([WorkerExited(0, 1, FAIL), WorkerExited(0, 0, FAIL)])
    assert isinstance(instructions[-1], m.StopWorkers)


def test_a_success_while_settling_does_not_hide_the_failure() -> None:
    _, instructions = play([WorkerExited(0, 1, FAIL), WorkerExited(0, 0, 0)])
    assert instructions[-1] == m.StopWorkers(0, signal.SIGTERM, 30.0, "failure")


FAILED = [WorkerExited(0, 1, FAIL), m.SettleOver(0), m.Diagnosed(0, 3)]


def test_a_failure_restarts_in_a_new_round_while_the_budget_lasts() -> None:
    state, instructions = play(FAILED)
    assert instructions[-2:] == [m.ReportFailure(0, 0, "restart"), m.StartWorkers(1, 1)]
    assert isinstance(state, m.Running)
    again = [WorkerExited(1, 0, FAIL), m.SettleOver(1), m.Diagnosed(1, 9)]
    assert finish_code([*FAILED, *again]) == exit_codes.BUDGET_SPENT


def test_events_of_an_earlier_round_change_nothing() -> None:
    before, _ = play(FAILED)
    after, instructions = play([*FAILED, WorkerExited(0, 0, FAIL), m.SettleOver(0)])
    assert after == before
    assert instructions[-1] == m.StartWorkers(1, 1)


def test_processes_that_cannot_be_killed_forbid_a_restart() -> None:
    assert finish_code([*FAILED[:2], m.Diagnosed(0, 3, unkillable=("77",))]) == 3


@pytest.mark.parametrize(("errno", "code"), [(2, 127), (13, 126)])
def test_a_program_that_cannot_start_is_not_tried_again(errno: int, code: int) -> None:
    assert finish_code([SpawnFailed(0, 0, errno, "x"), m.Diagnosed(0, 0)]) == code


def test_a_round_that_cannot_be_prepared_ends_the_job() -> None:
    assert finish_code([SpawnFailed(0, 0, 11, "fork"), m.Diagnosed(0, 0)]) == exit_codes.LOST
    assert finish_code([m.StartFailed(0), m.Diagnosed(0, 0)]) == exit_codes.LOST


@pytest.mark.parametrize(
    ("signo", "passed_on", "code"),
    [
        (signal.SIGTERM, signal.SIGTERM, exit_codes.PREEMPTED),
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGHUP, signal.SIGTERM, 129),
    ],
)
@pytest.mark.parametrize("before", [[], [WorkerExited(0, 1, FAIL)]])
def test_a_stop_request_stops(signo: int, passed_on: int, code: int, before: list[m.Event]) -> None:
    events = [*before, m.StopRequested(signo)]
    assert play(events)[1][-1] == m.StopWorkers(0, passed_on, 30.0, "signal")
    assert finish_code([*events, m.Diagnosed(0, 128 + passed_on, passed_on)]) == code


def test_a_second_stop_request_kills() -> None:
    _, instructions = play([m.StopRequested(15), m.StopRequested(15)])
    assert instructions[-1] == m.StopWorkers(0, signal.SIGKILL, 0, "signal")


def test_a_stop_request_after_a_failure_prevents_the_restart() -> None:
    stopped = [*FAILED[:2], m.StopRequested(15)]
    assert finish_code([*stopped, m.Diagnosed(0, 3)]) == 3
    interrupted = [*FAILED[:2], m.StopRequested(2)]
    assert finish_code([*interrupted, m.Diagnosed(0, 3)]) == 130


def test_a_lost_keeper_ends_the_job_in_every_state() -> None:
    for before in ([], [WorkerExited(0, 1, FAIL)], [m.StopRequested(15)], FAILED):
        state, _ = play(before)
        state, instructions = machine.handle(POLICY, state, KeeperLost(state.attempt.round))
        assert instructions == (m.KillDescendants(), m.Finish(exit_codes.LOST))


def test_the_dead_man_ends_the_job() -> None:
    assert finish_code([DeadManFired(0), m.Diagnosed(0, 137)]) == exit_codes.LOST


def test_nothing_happens_after_the_end() -> None:
    events = [DeadManFired(0), m.Diagnosed(0, 0)]
    state, _ = play(events)
    assert machine.handle(POLICY, state, m.StopRequested(15)) == (state, ())


def any_event(number: int) -> st.SearchStrategy[m.Event]:
    ranks = st.integers(0, 2)
    return st.one_of(
        st.builds(WorkerExited, st.just(number), ranks, st.sampled_from([0, 9, 256])),
        st.builds(SpawnFailed, st.just(number), ranks, st.sampled_from([2, 13]), st.just("")),
        st.builds(m.SettleOver, st.just(number)),
        st.builds(m.StartFailed, st.just(number)),
        st.builds(m.StopRequested, st.sampled_from([1, 2, 15])),
        st.builds(DeadManFired, st.just(number)),
        st.builds(m.Noticed, st.sampled_from([10, 12])),
        st.builds(m.Hung, st.just(number), st.just(6)),
        st.builds(m.WaitOver, st.just(number)),
        st.builds(
            m.Diagnosed,
            st.just(number),
            st.integers(0, 255),
            st.sampled_from([0, 9, 10]),
            st.sampled_from(["", "a", "b"]),
            chance=st.floats(0, 1, exclude_max=True),
        ),
    )


@settings(max_examples=50, deadline=None)
@given(data=st.data(), budget=st.integers(0, 3))
def test_any_sequence_keeps_the_budget_and_the_rounds_and_can_end(
    data: st.DataObject, budget: int
) -> None:
    policy = m.Policy(ranks=frozenset({0, 1, 2}), max_restarts=budget, grace=1.0, backoff=1.0)
    state, instructions = machine.begin(policy)
    starts = [i for i in instructions if isinstance(i, m.StartWorkers)]
    for _ in range(data.draw(st.integers(0, 30))):
        late = data.draw(st.integers(0, 1))
        event = data.draw(any_event(state.attempt.round - late))
        before = state
        state, instructions = machine.handle(policy, state, event)
        new = [i for i in instructions if isinstance(i, m.StartWorkers)]
        assert not new or isinstance(before, m.Stopping | m.Waiting)  # never beside a living round
        starts += new
    assert [start.round for start in starts] == list(range(len(starts)))
    assert len(starts) <= budget + 1
    assert_ends(policy, state)


def assert_ends(policy: m.Policy, state: m.State) -> None:
    """Whatever came before, all workers' failing ends the job within the budget."""
    for _ in range((policy.max_restarts + 1) * (len(policy.ranks) + 1)):
        number = state.attempt.round
        state, _ = machine.handle(policy, state, m.WaitOver(number))
        for rank in policy.ranks:
            state, _ = machine.handle(policy, state, WorkerExited(number, rank, FAIL))
        state, _ = machine.handle(policy, state, m.Diagnosed(number, 1))
    assert isinstance(state, m.Finished)


def test_an_internal_error_ends_the_job_in_every_state() -> None:
    attempt = m.Attempt(round=2, restarts=1)
    for state in (
        m.Running(attempt=attempt, alive=frozenset({0})),
        m.Settling(attempt=attempt, alive=frozenset({0})),
        m.Stopping(attempt=attempt, cause="failure"),
        m.Waiting(attempt=attempt),
    ):
        ended, instructions = machine.handle(POLICY, state, m.InternalError())
        assert ended == m.Finished(attempt=attempt, code=exit_codes.LOST, outcome="lost")
        assert instructions == (m.Finish(exit_codes.LOST),)


def test_a_lost_keeper_counts_whatever_round_it_was_lost_in() -> None:
    attempt = m.Attempt(round=1, restarts=1)
    running = m.Running(attempt=attempt, alive=frozenset({0}))
    ended, _ = machine.handle(POLICY, running, KeeperLost(0))
    assert ended == m.Finished(attempt=attempt, code=exit_codes.LOST, outcome="lost")


def test_a_stop_request_after_a_failure_is_announced_and_the_failure_still_reported() -> None:
    policy = m.Policy(ranks=frozenset({0, 1}), max_restarts=3, grace=9.0)
    stopping = m.Stopping(attempt=m.Attempt(), cause="failure")
    asked, (first,) = machine.handle(policy, stopping, m.StopRequested(15))
    assert first == m.StopWorkers(0, 15, 9.0, "signal")
    insisted, (second,) = machine.handle(policy, asked, m.StopRequested(15))
    assert second == m.StopWorkers(0, 9, 0, "signal")
    ended, instructions = machine.handle(policy, insisted, m.Diagnosed(0, 4))
    assert ended == m.Finished(attempt=m.Attempt(), code=4, outcome="failed")
    assert instructions == (m.ReportFailure(0, 0, "stopped"), m.Finish(4))


def test_a_worker_that_was_killed_needs_no_settling() -> None:
    _, instructions = play([WorkerExited(0, 1, signal.SIGKILL)])
    assert instructions[-1] == m.StopWorkers(0, signal.SIGTERM, 30.0, "failure")


def test_one_that_got_sigterm_may_have_got_it_with_the_agent() -> None:
    events = [WorkerExited(0, 1, signal.SIGTERM), m.StopRequested(signal.SIGTERM)]
    assert finish_code([*events, m.Diagnosed(0, 143, signal.SIGTERM)]) == exit_codes.PREEMPTED


def test_a_notice_is_passed_on_and_who_dies_of_it_was_preempted() -> None:
    events: list[m.Event] = [m.Noticed(signal.SIGUSR1)]
    assert play(events)[1][-1] == m.PassOn(signal.SIGUSR1)
    died = [WorkerExited(0, 0, signal.SIGUSR1), m.SettleOver(0)]
    code = 128 + signal.SIGUSR1
    assert (
        finish_code([*events, *died, m.Diagnosed(0, code, signal.SIGUSR1)]) == exit_codes.PREEMPTED
    )
    state, _ = play([*died, m.Diagnosed(0, code, signal.SIGUSR1)])
    assert isinstance(state, m.Running)  # without the notice it is a failure like any other


def test_a_hang_is_stopped_soon_and_restarted() -> None:
    hung = [m.Hung(0, signal.SIGABRT)]
    assert play(hung)[1][-1] == m.StopWorkers(0, signal.SIGABRT, machine.HUNG_GRACE, "hang")
    restarted, _ = play([*hung, m.Diagnosed(0, 134, signal.SIGABRT)])
    assert isinstance(restarted, m.Running)
    once = m.Policy(ranks=POLICY.ranks, max_restarts=0, grace=1.0)
    assert finish_code([*hung, m.Diagnosed(0, 134, signal.SIGABRT)], once) == exit_codes.HUNG


def test_the_same_failure_at_the_start_is_not_tried_a_third_time() -> None:
    policy = m.Policy(ranks=frozenset({0}), max_restarts=5, grace=1.0)
    first = [WorkerExited(0, 0, FAIL), m.Diagnosed(0, 3, startup="a")]
    again = [WorkerExited(1, 0, FAIL), m.Diagnosed(1, 3, startup="a")]
    assert finish_code([*first, *again], policy) == 3
    other = [WorkerExited(1, 0, FAIL), m.Diagnosed(1, 3, startup="b")]
    assert isinstance(play([*first, *other], policy)[0], m.Running)
    later = [WorkerExited(1, 0, FAIL), m.Diagnosed(1, 3)]
    assert isinstance(play([*first, *later], policy)[0], m.Running)


def test_the_second_restart_in_a_row_waits_and_a_stop_request_ends_the_wait() -> None:
    policy = m.Policy(ranks=frozenset({0}), max_restarts=5, grace=1.0, backoff=2.0)
    events: list[m.Event] = []
    for number in range(2):
        events += [WorkerExited(number, 0, FAIL), m.Diagnosed(number, 3)]
    state, instructions = play(events, policy)
    assert isinstance(state, m.Waiting)
    assert instructions[-2:] == [m.ReportFailure(1, 1, "restart", 2.0), m.Wait(2, 2.0)]
    assert play([*events, m.WaitOver(2)], policy)[1][-1] == m.StartWorkers(2, 2)
    assert finish_code([*events, m.StopRequested(2)], policy) == 130


def test_a_notice_and_then_a_request_are_one_preemption() -> None:
    died = WorkerExited(0, 0, signal.SIGUSR1)
    events = [m.Noticed(signal.SIGUSR1), died, m.StopRequested(signal.SIGTERM)]
    over = m.Diagnosed(0, 128 + signal.SIGUSR1, signal.SIGUSR1)
    assert finish_code([*events, over]) == exit_codes.PREEMPTED


def test_a_notice_without_workers_is_not_passed_on() -> None:
    assert not any(isinstance(i, m.PassOn) for i in play([*FAILED[:2], m.Noticed(10)])[1])


@pytest.mark.parametrize(
    ("before", "code", "outcome"),
    [
        (DeadManFired(0), exit_codes.LOST, "lost"),
        (SpawnFailed(0, 0, 2, "x"), exit_codes.NOT_FOUND, "failed"),
        (m.Hung(0, 15), exit_codes.HUNG, "hung"),
    ],
)
def test_what_came_before_a_request_to_make_room_gives_the_code(
    before: m.Event, code: int, outcome: str
) -> None:
    state, _ = play([before, m.StopRequested(signal.SIGTERM), m.Diagnosed(0, 143, 15)])
    assert state == m.Finished(attempt=m.Attempt(), code=code, outcome=outcome)  # type: ignore[arg-type]


def test_a_keeper_that_dies_when_all_is_done_does_no_harm() -> None:
    events = [WorkerExited(0, 0, 0), WorkerExited(0, 1, 0), KeeperLost(0)]
    state, instructions = play(events)
    assert state == m.Finished(attempt=m.Attempt(), code=0, outcome="succeeded")
    assert instructions[-2:] == [m.KillDescendants(), m.Finish(0)]


def test_the_outcome_does_not_follow_from_a_workers_code() -> None:
    code = exit_codes.PREEMPTED
    alone = m.Policy(ranks=frozenset({0}), max_restarts=0, grace=1.0)
    state, _ = play([WorkerExited(0, 0, code << 8), m.Diagnosed(0, code)], alone)
    assert state == m.Finished(attempt=m.Attempt(), code=code, outcome="failed")
