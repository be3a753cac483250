"""The machine's decisions, as tables and over random sequences of events."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torshrun.agent import machine as m
from torshrun.workers.events import DeadManFired, KeeperLost, SpawnFailed, WorkerExited

POLICY = m.Policy(ranks=frozenset({0, 1}), max_restarts=1, grace=30.0)


def play(
    events: Sequence[m.Event], policy: m.Policy = POLICY
) -> tuple[m.State, list[m.Instruction]]:
    state, instructions = m.begin(policy)
    carried_out = list(instructions)
    for event in events:
        state, instructions = m.handle(policy, state, event)
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
    events = [WorkerExited(0, 0, True), WorkerExited(0, 1, True)]
    state, instructions = play(events)
    assert isinstance(state, m.Stopping)
    assert instructions[-1] == m.StopWorkers(0, signal.SIGTERM, 30.0, "done")
    assert finish_code([*events, m.Diagnosed(0, 0)]) == 0


def test_a_failure_settles_before_the_others_are_stopped() -> None:
    state, instructions = play([WorkerExited(0, 1, False)])
    assert isinstance(state, m.Settling)
    assert instructions[-1] == m.Settle(0, m.SETTLE_SECONDS)
    state, instructions = play([WorkerExited(0, 1, False), m.SettleOver(0)])
    assert instructions[-1] == m.StopWorkers(0, signal.SIGTERM, 30.0, "failure")


def test_settling_ends_at_once_when_nobody_is_left() -> None:
    _, instructions = play([WorkerExited(0, 1, False), WorkerExited(0, 0, False)])
    assert isinstance(instructions[-1], m.StopWorkers)


def test_a_success_while_settling_does_not_hide_the_failure() -> None:
    _, instructions = play([WorkerExited(0, 1, False), WorkerExited(0, 0, True)])
    assert instructions[-1] == m.StopWorkers(0, signal.SIGTERM, 30.0, "failure")


FAILED = [WorkerExited(0, 1, False), m.SettleOver(0), m.Diagnosed(0, 3)]


def test_a_failure_restarts_in_a_new_round_while_the_budget_lasts() -> None:
    state, instructions = play(FAILED)
    assert instructions[-2:] == [m.ReportFailure(0, 0, True, ()), m.StartWorkers(1, 1)]
    assert isinstance(state, m.Running)
    again = [WorkerExited(1, 0, False), m.SettleOver(1), m.Diagnosed(1, 9)]
    assert finish_code([*FAILED, *again]) == 9


def test_events_of_an_earlier_round_change_nothing() -> None:
    before, _ = play(FAILED)
    after, instructions = play([*FAILED, WorkerExited(0, 0, False), m.SettleOver(0)])
    assert after == before
    assert instructions[-1] == m.StartWorkers(1, 1)


def test_processes_that_cannot_be_killed_forbid_a_restart() -> None:
    assert finish_code([*FAILED[:2], m.Diagnosed(0, 3, (77,))]) == 3


@pytest.mark.parametrize(("errno", "code"), [(2, 127), (13, 126)])
def test_a_program_that_cannot_start_is_not_tried_again(errno: int, code: int) -> None:
    assert finish_code([SpawnFailed(0, 0, errno, "x"), m.Diagnosed(0, 0)]) == code


def test_a_round_that_cannot_be_prepared_ends_the_job() -> None:
    assert finish_code([m.StartFailed(0), m.Diagnosed(0, 0)]) == 1


@pytest.mark.parametrize(
    ("signo", "passed_on", "code"),
    [
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGHUP, signal.SIGTERM, 129),
    ],
)
@pytest.mark.parametrize("before", [[], [WorkerExited(0, 1, False)]])
def test_a_stop_request_stops(signo: int, passed_on: int, code: int, before: list[m.Event]) -> None:
    events = [*before, m.StopRequested(signo)]
    assert play(events)[1][-1] == m.StopWorkers(0, passed_on, 30.0, "signal")
    assert finish_code([*events, m.Diagnosed(0, 1)]) == code


def test_a_second_stop_request_kills() -> None:
    _, instructions = play([m.StopRequested(15), m.StopRequested(15)])
    assert instructions[-1] == m.StopWorkers(0, signal.SIGKILL, 0, "signal")


def test_a_stop_request_after_a_failure_prevents_the_restart() -> None:
    stopped = [*FAILED[:2], m.StopRequested(15)]
    assert finish_code([*stopped, m.Diagnosed(0, 3)]) == 143


def test_a_lost_keeper_ends_the_job_in_every_state() -> None:
    for before in ([], [WorkerExited(0, 1, False)], [m.StopRequested(15)], FAILED):
        state, _ = play(before)
        state, instructions = m.handle(POLICY, state, KeeperLost(state.round))
        assert instructions == (m.KillDescendants(), m.Finish(1))


def test_the_dead_man_ends_the_job() -> None:
    assert finish_code([DeadManFired(0), m.Diagnosed(0, 137)]) == 1


def test_nothing_happens_after_the_end() -> None:
    events = [DeadManFired(0), m.Diagnosed(0, 0)]
    state, _ = play(events)
    assert m.handle(POLICY, state, m.StopRequested(15)) == (state, ())


def any_event(number: int) -> st.SearchStrategy[m.Event]:
    ranks = st.integers(0, 2)
    return st.one_of(
        st.builds(WorkerExited, st.just(number), ranks, st.booleans()),
        st.builds(SpawnFailed, st.just(number), ranks, st.sampled_from([2, 13]), st.just("")),
        st.builds(m.SettleOver, st.just(number)),
        st.builds(m.StartFailed, st.just(number)),
        st.builds(m.StopRequested, st.sampled_from([1, 2, 15])),
        st.builds(DeadManFired, st.just(number)),
        st.builds(m.Diagnosed, st.just(number), st.integers(0, 255)),
    )


@settings(max_examples=50, deadline=None)
@given(data=st.data(), budget=st.integers(0, 3))
def test_any_sequence_keeps_the_budget_and_the_rounds_and_can_end(
    data: st.DataObject, budget: int
) -> None:
    policy = m.Policy(ranks=frozenset({0, 1, 2}), max_restarts=budget, grace=1.0)
    state, instructions = m.begin(policy)
    starts = [i for i in instructions if isinstance(i, m.StartWorkers)]
    for _ in range(data.draw(st.integers(0, 30))):
        late = data.draw(st.integers(0, 1))
        event = data.draw(any_event(state.round - late))
        before = state
        state, instructions = m.handle(policy, state, event)
        new = [i for i in instructions if isinstance(i, m.StartWorkers)]
        assert not new or isinstance(before, m.Stopping)  # never beside a living round
        starts += new
    assert [start.round for start in starts] == list(range(len(starts)))
    assert len(starts) <= budget + 1
    assert_ends(policy, state)


def assert_ends(policy: m.Policy, state: m.State) -> None:
    """Whatever came before, all workers' failing ends the job within the budget."""
    for _ in range((policy.max_restarts + 1) * (len(policy.ranks) + 1)):
        number = state.round
        for rank in policy.ranks:
            state, _ = m.handle(policy, state, WorkerExited(number, rank, False))
        state, _ = m.handle(policy, state, m.Diagnosed(number, 1))
    assert isinstance(state, m.Finished)


def test_an_internal_error_ends_the_job_in_every_state() -> None:
    for state in (
        m.Running(round=2, restarts=1, alive=frozenset({0})),
        m.Settling(round=2, restarts=1, alive=frozenset({0})),
        m.Stopping(round=2, restarts=1, cause="failure"),
    ):
        policy = m.Policy(ranks=frozenset({0, 1}), max_restarts=3, grace=1.0)
        ended, instructions = m.handle(policy, state, m.InternalError())
        assert ended == m.Finished(round=2, code=m.EXIT_LOST)
        assert instructions == (m.Finish(m.EXIT_LOST),)


def test_a_lost_keeper_counts_whatever_round_it_was_lost_in() -> None:
    policy = m.Policy(ranks=frozenset({0}), max_restarts=3, grace=1.0)
    running = m.Running(round=1, restarts=1, alive=frozenset({0}))
    ended, _ = m.handle(policy, running, KeeperLost(0))
    assert ended == m.Finished(round=1, code=m.EXIT_LOST)


def test_a_stop_request_after_a_failure_is_announced_and_the_failure_still_reported() -> None:
    policy = m.Policy(ranks=frozenset({0, 1}), max_restarts=3, grace=9.0)
    stopping = m.Stopping(round=0, restarts=0, cause="failure")
    asked, (first,) = m.handle(policy, stopping, m.StopRequested(15))
    assert first == m.StopWorkers(0, 15, 9.0, "signal")
    insisted, (second,) = m.handle(policy, asked, m.StopRequested(15))
    assert second == m.StopWorkers(0, 9, 0, "signal")
    ended, instructions = m.handle(policy, insisted, m.Diagnosed(0, 4))
    assert ended == m.Finished(round=0, code=143)
    assert instructions == (m.ReportFailure(0, 0, False, ()), m.Finish(143))
