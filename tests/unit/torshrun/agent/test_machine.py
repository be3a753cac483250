"""The machine's decisions, as tables and over random sequences of events."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ports import GivenPorts

from torshrun import exit_codes
from torshrun.agent import machine
from torshrun.agent import protocol as m
from torshrun.config.job import LaunchConfig, RendezvousConfig
from torshrun.rendezvous.alone import Alone
from torshrun.rendezvous.base import (
    Granted,
    JobOver,
    NodeAssignment,
    RendezvousEvent,
    Report,
    RoundClosing,
    RoundFormed,
    StandingBy,
    Verdict,
)

FAIL = 3 << 8
"""The status of a process that exits with 3."""
ALONE = LaunchConfig(target="t", nproc_per_node=2, shutdown_timeout=30.0)
AMONG_OTHERS = replace(ALONE, rendezvous=RendezvousConfig(backend="etcd", endpoints=()))


def diagnosed(
    number: int,
    code: int,
    signo: int = 0,
    startup: str = "",
    unkillable: tuple[str, ...] = (),
    **more: Any,
) -> m.Diagnosed:
    """What the agent says of a round whose root cause ended so."""
    report = Report(round=number, outcome="failed", code=code, signo=signo, startup=startup, **more)
    return m.Diagnosed(report, unkillable)


def place(number: int, restarts: int, workers: int = 2, first_rank: int = 0) -> NodeAssignment:
    return NodeAssignment(
        round=number,
        restarts=restarts,
        node_rank=0,
        num_nodes=1,
        first_rank=first_rank,
        world_size=first_rank + workers,
        master_addr="127.0.0.1",
        master_port=1,
        jax_port=2,
        store_endpoint="",
    )


class Play:
    """A node of its own: the machine, and the rendezvous that it talks to."""

    def __init__(self, config: LaunchConfig, budget: int) -> None:
        self._config = config
        self._posted: deque[RendezvousEvent] = deque()
        rules = replace(config, max_restarts=budget, restart_backoff=0, master_port=1)
        self._rendezvous = Alone(rules, GivenPorts())
        self.state: machine.State = machine.Waiting()
        self.carried_out: list[m.Instruction] = []
        self._rendezvous.start(self._posted.append)
        self._settle()

    def feed(self, event: m.Event) -> None:
        self._step(event)
        self._settle()

    def _step(self, event: m.Event) -> None:
        self.state, instructions = machine.handle(self._config, self.state, event)
        for instruction in instructions:
            self.carried_out.append(instruction)
            if isinstance(instruction, m.TellRendezvous):
                self._rendezvous.report(instruction.report)
            elif isinstance(instruction, m.Leave):
                self._rendezvous.leave(instruction.outcome, instruction.code, "asked")

    def _settle(self) -> None:
        while self._posted:
            event = self._posted.popleft()
            assert not isinstance(event, StandingBy | Granted)
            self._step(event)


def play(
    events: Sequence[m.Event], config: LaunchConfig = ALONE, budget: int = 1
) -> tuple[machine.State, list[m.Instruction]]:
    node = Play(config, budget)
    for event in events:
        node.feed(event)
    shown = [i for i in node.carried_out if not isinstance(i, m.TellRendezvous | m.Leave)]
    return node.state, shown


def finish_code(events: Sequence[m.Event], config: LaunchConfig = ALONE, budget: int = 1) -> int:
    state, _ = play(events, config, budget)
    assert isinstance(state, machine.Finished)
    return state.code


def test_a_broken_gpu_before_the_start_has_its_exit_code() -> None:
    events = [m.NotStarted(0, code=exit_codes.GPU_BROKEN), diagnosed(0, 0)]
    assert finish_code(events) == exit_codes.GPU_BROKEN


@pytest.mark.parametrize("cause", ["failure", "hang"])
def test_a_failure_beside_a_broken_gpu_is_told_and_not_restarted(cause: str) -> None:
    first = m.WorkerEnded(0, 0, 9) if cause == "failure" else m.Hung(0, 15)
    state, instructions = play([first, diagnosed(0, 137)._replace(broken="a GPU is")])
    assert isinstance(state, machine.Finished)
    assert (state.code, state.outcome) == (exit_codes.GPU_BROKEN, "failed")
    told = [each for each in instructions if isinstance(each, m.ReportFailure)]
    assert [each.sequel for each in told] == ["broken"]


def test_what_a_signal_ended_is_not_put_down_to_a_gpu() -> None:
    events = [m.StopRequested(15), diagnosed(0, 0)._replace(broken="a GPU is")]
    assert finish_code(events) == exit_codes.PREEMPTED


def test_it_begins_with_all_workers() -> None:
    assert play([])[1] == [m.StartWorkers(place(0, 0))]


def test_success_of_all_sweeps_and_finishes_with_0() -> None:
    events = [m.WorkerEnded(0, 0, 0), m.WorkerEnded(0, 1, 0)]
    state, instructions = play(events)
    assert isinstance(state, machine.Stopping)
    assert instructions[-1] == m.StopWorkers(0, 30.0, "done")  # what they left may end by itself
    for signo, sent in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGKILL)):
        state, asked = machine.handle(ALONE, state, m.StopRequested(signo))
        assert asked == (m.StopWorkers(sent, 0, "done"),)
    assert finish_code([*events, diagnosed(0, 0)]) == 0


def test_a_failure_settles_before_the_others_are_stopped() -> None:
    state, instructions = play([m.WorkerEnded(0, 1, FAIL)])
    assert isinstance(state, machine.Running)
    assert state.failing
    assert instructions[-1] == m.Settle(0, machine.SETTLE_SECONDS)
    state, instructions = play([m.WorkerEnded(0, 1, FAIL), m.SettleOver(0)])
    assert instructions[-1] == m.StopWorkers(signal.SIGTERM, 30.0, "failure")


def test_settling_ends_at_once_when_nobody_is_left() -> None:
    _, instructions = play([m.WorkerEnded(0, 1, FAIL), m.WorkerEnded(0, 0, FAIL)])
    assert isinstance(instructions[-1], m.StopWorkers)


def test_a_success_while_settling_does_not_hide_the_failure() -> None:
    _, instructions = play([m.WorkerEnded(0, 1, FAIL), m.WorkerEnded(0, 0, 0)])
    assert instructions[-1] == m.StopWorkers(signal.SIGTERM, 30.0, "failure")


FAILED = [m.WorkerEnded(0, 1, FAIL), m.SettleOver(0), diagnosed(0, 3)]


def test_a_failure_restarts_in_a_new_round_while_the_budget_lasts() -> None:
    state, instructions = play(FAILED)
    assert instructions[-2:] == [m.ReportFailure(0, "restart"), m.StartWorkers(place(1, 1))]
    assert isinstance(state, machine.Running)
    again = [m.WorkerEnded(1, 0, FAIL), m.SettleOver(1), diagnosed(1, 9)]
    assert finish_code([*FAILED, *again]) == exit_codes.BUDGET_SPENT


def test_events_of_an_earlier_round_change_nothing() -> None:
    before, _ = play(FAILED)
    after, instructions = play([*FAILED, m.WorkerEnded(0, 0, FAIL), m.SettleOver(0)])
    assert after == before
    assert instructions[-1] == m.StartWorkers(place(1, 1))


def test_processes_that_cannot_be_killed_forbid_a_restart() -> None:
    assert finish_code([*FAILED[:2], diagnosed(0, 3, unkillable=("77",))]) == 3


@pytest.mark.parametrize(("errno", "code"), [(2, 127), (13, 126)])
def test_a_program_that_cannot_start_is_not_tried_again(errno: int, code: int) -> None:
    assert finish_code([m.NotStarted(0, errno), diagnosed(0, 0)]) == code


def test_a_round_that_cannot_be_prepared_ends_the_job() -> None:
    assert finish_code([m.NotStarted(0, 11), diagnosed(0, 0)]) == exit_codes.LOST
    assert finish_code([m.NotStarted(0), diagnosed(0, 0)]) == exit_codes.LOST


@pytest.mark.parametrize(
    ("signo", "passed_on", "code"),
    [
        (signal.SIGTERM, signal.SIGTERM, exit_codes.PREEMPTED),
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGHUP, signal.SIGTERM, 129),
    ],
)
@pytest.mark.parametrize("before", [[], [m.WorkerEnded(0, 1, FAIL)]])
def test_a_stop_request_stops(signo: int, passed_on: int, code: int, before: list[m.Event]) -> None:
    events = [*before, m.StopRequested(signo)]
    assert play(events)[1][-1] == m.StopWorkers(passed_on, 30.0, "signal")
    assert finish_code([*events, diagnosed(0, 128 + passed_on, passed_on)]) == code


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_after_a_stop_request_kills(first: int) -> None:
    events = [m.StopRequested(first), m.StopRequested(signal.SIGINT)]
    assert play(events)[1][-1] == m.StopWorkers(signal.SIGKILL, 0, "signal")
    assert finish_code([*events, diagnosed(0, 137, signal.SIGKILL)]) == 130


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_any_other_request_that_is_repeated_changes_nothing(first: int, again: int) -> None:
    once = [m.StopRequested(first)]
    for rest in ([], [diagnosed(0, 0)]):
        assert play([*once, m.StopRequested(again), *rest]) == play([*once, *rest])
    stopped, _ = among(once)
    for state in (stopped, among([*once, diagnosed(0, 143, 15)])[0]):
        assert machine.handle(AMONG_OTHERS, state, m.StopRequested(again)) == (state, ())


def test_a_stop_request_after_a_failure_prevents_the_restart() -> None:
    stopped = [*FAILED[:2], m.StopRequested(15)]
    assert finish_code([*stopped, diagnosed(0, 3)]) == 3
    interrupted = [*FAILED[:2], m.StopRequested(2)]
    assert finish_code([*interrupted, diagnosed(0, 3)]) == 130


def test_a_lost_keeper_ends_the_job_in_every_state() -> None:
    for before in ([], [m.WorkerEnded(0, 1, FAIL)], [m.StopRequested(15)], FAILED):
        state, _ = play(before)
        state, instructions = machine.handle(ALONE, state, m.KeeperLost())
        assert not instructions
        assert isinstance(state, machine.Finished)
        assert state.code == exit_codes.LOST


def test_the_dead_man_ends_the_job() -> None:
    assert finish_code([m.DeadManFired(0), diagnosed(0, 137)]) == exit_codes.LOST


def test_nothing_happens_after_the_end() -> None:
    events = [m.DeadManFired(0), diagnosed(0, 0)]
    state, _ = play(events)
    assert machine.handle(ALONE, state, m.StopRequested(15)) == (state, ())


def any_event(number: int) -> st.SearchStrategy[m.Event]:
    ranks = st.integers(0, 2)
    return st.one_of(
        st.builds(m.WorkerEnded, st.just(number), ranks, st.sampled_from([0, 9, 256])),
        st.builds(m.NotStarted, st.just(number), st.sampled_from([0, 2, 13])),
        st.builds(m.SettleOver, st.just(number)),
        st.builds(m.StopRequested, st.sampled_from([1, 2, 15])),
        st.builds(m.DeadManFired, st.just(number)),
        st.builds(m.Noticed, st.sampled_from([10, 12])),
        st.builds(m.Hung, st.just(number), st.just(6)),
        st.builds(
            diagnosed,
            st.just(number),
            st.integers(0, 255),
            st.sampled_from([0, 9, 10]),
            st.sampled_from(["", "a", "b"]),
        ),
    )


@settings(max_examples=50, deadline=None)
@given(data=st.data(), budget=st.integers(0, 3))
def test_any_sequence_keeps_the_budget_and_the_rounds_and_can_end(
    data: st.DataObject, budget: int
) -> None:
    node = Play(replace(ALONE, nproc_per_node=3, shutdown_timeout=1.0), budget)
    starts = 1
    for _ in range(data.draw(st.integers(0, 30))):
        late = data.draw(st.integers(0, 1))
        event = data.draw(any_event(node.state.attempt.round - late))
        before = node.state
        node.feed(event)
        number = sum(isinstance(i, m.StartWorkers) for i in node.carried_out)
        # Never beside a living round.
        assert number == starts or isinstance(before, machine.Stopping)
        starts = number
    begun = [i.place.round for i in node.carried_out if isinstance(i, m.StartWorkers)]
    assert begun == list(range(starts))
    assert starts <= budget + 1
    assert_ends(node, budget)


def assert_ends(node: Play, budget: int) -> None:
    """Whatever came before, all workers' failing ends the job within the budget."""
    for _ in range(4 * (budget + 1)):
        number = node.state.attempt.round
        for rank in range(3):
            node.feed(m.WorkerEnded(number, rank, FAIL))
        node.feed(diagnosed(number, 1))
    assert isinstance(node.state, machine.Finished)


def test_an_internal_error_ends_the_job_in_every_state() -> None:
    attempt = machine.Attempt(round=2, restarts=1)
    for state in (
        machine.Running(attempt=attempt, alive=frozenset({0})),
        machine.Running(attempt=attempt, alive=frozenset({0}), failing=True),
        machine.Stopping(attempt=attempt, cause="failure"),
        machine.Waiting(attempt=attempt),
    ):
        ended, instructions = machine.handle(ALONE, state, m.InternalError())
        assert ended == machine.Finished(attempt=attempt, code=exit_codes.LOST, outcome="lost")
        assert instructions == ()


def test_a_lost_keeper_counts_whatever_round_it_was_lost_in() -> None:
    attempt = machine.Attempt(round=1, restarts=1)
    running = machine.Running(attempt=attempt, alive=frozenset({0}))
    ended, _ = machine.handle(ALONE, running, m.KeeperLost())
    assert ended == machine.Finished(attempt=attempt, code=exit_codes.LOST, outcome="lost")


def test_a_stop_request_after_a_failure_is_announced_and_the_failure_still_reported() -> None:
    failed = [m.WorkerEnded(0, 1, FAIL), m.SettleOver(0)]
    ended, instructions = play([*failed, m.StopRequested(15), diagnosed(0, 4)], budget=3)
    assert instructions[-2:] == [
        m.StopWorkers(15, 30.0, "signal"),
        m.ReportFailure(0, "stopped"),
    ]
    assert ended == machine.Finished(attempt=machine.Attempt(), code=4, outcome="failed")


def test_a_worker_that_was_killed_needs_no_settling() -> None:
    _, instructions = play([m.WorkerEnded(0, 1, signal.SIGKILL)])
    assert instructions[-1] == m.StopWorkers(signal.SIGTERM, 30.0, "failure")


def test_one_that_got_sigterm_may_have_got_it_with_the_agent() -> None:
    events = [m.WorkerEnded(0, 1, signal.SIGTERM), m.StopRequested(signal.SIGTERM)]
    assert finish_code([*events, diagnosed(0, 143, signal.SIGTERM)]) == exit_codes.PREEMPTED


def test_a_notice_is_passed_on_and_who_dies_of_it_was_preempted() -> None:
    events: list[m.Event] = [m.Noticed(signal.SIGUSR1)]
    assert play(events)[1][-1] == m.PassOn(signal.SIGUSR1)
    died = [m.WorkerEnded(0, 0, signal.SIGUSR1), m.SettleOver(0)]
    code = 128 + signal.SIGUSR1
    assert finish_code([*events, *died, diagnosed(0, code, signal.SIGUSR1)]) == exit_codes.PREEMPTED
    state, _ = play([*died, diagnosed(0, code, signal.SIGUSR1)])
    assert isinstance(state, machine.Running)  # without the notice it is a failure like any other


def test_a_hang_is_stopped_soon_and_restarted() -> None:
    hung = [m.Hung(0, signal.SIGABRT)]
    assert play(hung)[1][-1] == m.StopWorkers(signal.SIGABRT, machine.HUNG_GRACE, "hang")
    restarted, _ = play([*hung, diagnosed(0, 134, signal.SIGABRT)])
    assert isinstance(restarted, machine.Running)
    assert finish_code([*hung, diagnosed(0, 134, signal.SIGABRT)], budget=0) == exit_codes.HUNG


def test_a_notice_and_then_a_request_are_one_preemption() -> None:
    died = m.WorkerEnded(0, 0, signal.SIGUSR1)
    events = [m.Noticed(signal.SIGUSR1), died, m.StopRequested(signal.SIGTERM)]
    over = diagnosed(0, 128 + signal.SIGUSR1, signal.SIGUSR1)
    assert finish_code([*events, over]) == exit_codes.PREEMPTED


MADE_ROOM = exit_codes.PREEMPTED << 8


def test_who_makes_room_after_a_notice_has_not_failed_and_interrupts_nobody() -> None:
    events = [m.Noticed(signal.SIGUSR1), m.WorkerEnded(0, 0, MADE_ROOM)]
    _, said = play(events)
    assert said[-1] == m.StopWorkers(0, ALONE.shutdown_timeout, "failure")
    over = [*events, m.WorkerEnded(0, 1, MADE_ROOM), diagnosed(0, exit_codes.PREEMPTED)]
    assert finish_code(over) == exit_codes.PREEMPTED
    assert not any(isinstance(each, m.ReportFailure) for each in play(over)[1])


def test_the_same_code_without_a_notice_is_a_failure() -> None:
    events = [m.WorkerEnded(0, 0, MADE_ROOM), m.SettleOver(0)]
    assert play(events)[1][-1] == m.StopWorkers(signal.SIGTERM, ALONE.shutdown_timeout, "failure")
    state, _ = play([*events, diagnosed(0, exit_codes.PREEMPTED)])
    assert isinstance(state, machine.Running)


def test_a_notice_that_comes_after_workers_died_of_it_counts() -> None:
    died = [m.WorkerEnded(0, rank, signal.SIGUSR1) for rank in range(2)]
    over = diagnosed(0, 128 + signal.SIGUSR1, signal.SIGUSR1)
    assert finish_code([*died, m.Noticed(signal.SIGUSR1), over]) == exit_codes.PREEMPTED


def test_a_notice_that_workers_have_got_themselves_is_not_passed_on() -> None:
    config = replace(ALONE, signals_reach_workers=True)
    running = machine.Running(attempt=machine.Attempt(), alive=frozenset({0, 1}))
    state, said = machine.handle(config, running, m.Noticed(signal.SIGUSR1))
    assert said == ()
    assert state.attempt.noticed == {signal.SIGUSR1}
    _, said = machine.handle(config, running, m.Noticed(signal.SIGUSR1, handled_only=True))
    assert said == (m.PassOn(signal.SIGUSR1, handled_only=True),)


def test_noticed_workers_of_other_nodes_are_not_interrupted_when_the_job_is_preempted() -> None:
    verdict = Verdict(outcome="preempted", code=exit_codes.PREEMPTED, reason="r")
    for noticed, signo in ((frozenset({10}), 0), (frozenset[int](), signal.SIGTERM)):
        attempt = machine.Attempt(noticed=noticed)
        running = machine.Running(attempt=attempt, alive=frozenset({0}))
        _, said = machine.handle(AMONG_OTHERS, running, JobOver(verdict))
        assert said == (m.StopWorkers(signo, ALONE.shutdown_timeout, "verdict"),)


def test_a_notice_without_workers_is_not_passed_on() -> None:
    assert not any(isinstance(i, m.PassOn) for i in play([*FAILED[:2], m.Noticed(10)])[1])


@pytest.mark.parametrize(
    ("before", "code", "outcome"),
    [
        (m.DeadManFired(0), exit_codes.LOST, "lost"),
        (m.NotStarted(0, 2), exit_codes.NOT_FOUND, "failed"),
        (m.Hung(0, 15), exit_codes.HUNG, "hung"),
    ],
)
def test_what_came_before_a_request_to_make_room_gives_the_code(
    before: m.Event, code: int, outcome: str
) -> None:
    state, _ = play([before, m.StopRequested(signal.SIGTERM), diagnosed(0, 143, 15)])
    assert state == machine.Finished(attempt=machine.Attempt(), code=code, outcome=outcome)  # type: ignore[arg-type]


def test_a_keeper_that_dies_when_all_is_done_does_no_harm() -> None:
    events = [m.WorkerEnded(0, 0, 0), m.WorkerEnded(0, 1, 0), m.KeeperLost()]
    state, _ = play(events)
    assert state == machine.Finished(attempt=machine.Attempt(), code=0, outcome="succeeded")


def test_the_outcome_does_not_follow_from_a_workers_code() -> None:
    code = exit_codes.PREEMPTED
    single = replace(ALONE, nproc_per_node=1)
    state, _ = play([m.WorkerEnded(0, 0, code << 8), diagnosed(0, code)], single, budget=0)
    assert state == machine.Finished(attempt=machine.Attempt(), code=code, outcome="failed")


# ---- among other nodes


def among(events: Sequence[m.Event]) -> tuple[machine.State, list[m.Instruction]]:
    """The machine alone, whose workers are ranks 4 and 5 of round 0."""
    state: machine.State = machine.Waiting()
    carried_out: list[m.Instruction] = []
    for event in [RoundFormed(place(0, 0, first_rank=4)), *events]:
        state, instructions = machine.handle(AMONG_OTHERS, state, event)
        carried_out += instructions
    return state, carried_out


CLOSING = RoundClosing(round=0, reason="node b was lost", failed=False)
OVER = JobOver(Verdict(outcome="failed", code=7, reason="rank 0 failed", sequel="no budget"))


def told(instructions: Sequence[m.Instruction]) -> list[tuple[str, int]]:
    reports = [i.report for i in instructions if isinstance(i, m.TellRendezvous)]
    return [(report.outcome, report.code) for report in reports]


def test_success_here_waits_for_the_others() -> None:
    done = [m.WorkerEnded(0, 0, 0), m.WorkerEnded(0, 1, 0), diagnosed(0, 0)]
    state, instructions = among(done)
    assert told(instructions) == [("succeeded", 0)]
    assert isinstance(state, machine.Waiting)
    state, instructions = among([*done, CLOSING, RoundFormed(place(1, 1))])
    assert instructions[-1] == m.StartWorkers(place(1, 1))
    state, _ = among([*done, OVER])
    assert state == machine.Finished(attempt=machine.Attempt(), code=7, outcome="failed")


def test_the_first_verdict_stands() -> None:
    other = JobOver(Verdict(outcome="lost", code=70, reason="the store is gone"))
    state, _ = among([OVER, other, CLOSING, diagnosed(0, 143, 15)])
    assert state == machine.Finished(attempt=machine.Attempt(), code=7, outcome="failed")


def test_a_round_that_closes_stops_the_workers_and_reports() -> None:
    assert among([CLOSING])[1][-1] == m.StopWorkers(signal.SIGTERM, 30.0, "closing")
    state, instructions = among([CLOSING, diagnosed(0, 143, 15)])
    assert told(instructions) == [("stopped", 0)]
    assert isinstance(state, machine.Waiting)
    assert among([replace(CLOSING, round=3)])[1] == among([])[1]


def test_a_failure_of_ones_own_stays_one_when_the_round_closes() -> None:
    closing = replace(CLOSING, failed=True, restarts=1)
    failed = [m.WorkerEnded(0, 4, FAIL), closing, diagnosed(0, 3)]
    _, instructions = among(failed)
    assert told(instructions) == [("failed", 3)]
    assert instructions[-1] == m.ReportFailure(0, "undecided")
    _, early = among([m.WorkerEnded(0, 4, FAIL), m.SettleOver(0), diagnosed(0, 3), closing])
    assert early[-1] == m.ReportFailure(0, "undecided")


def test_a_verdict_stops_the_workers_and_ends() -> None:
    state, instructions = among([OVER])
    assert instructions[-1] == m.StopWorkers(signal.SIGTERM, 30.0, "verdict")
    state, instructions = among([OVER, diagnosed(0, 143, 15)])
    assert state == machine.Finished(attempt=machine.Attempt(), code=7, outcome="failed")
    assert told(instructions) == []


def test_the_dead_man_ends_the_round_here_and_not_the_job() -> None:
    state, instructions = among([m.DeadManFired(0), diagnosed(0, 137, 9)])
    assert told(instructions) == [("stopped", 0)]
    assert isinstance(state, machine.Waiting)


def test_a_node_that_leaves_says_so_at_once_and_waits_for_its_dismissal() -> None:
    leave = m.Leave(exit_codes.PREEMPTED, "preempted", signal.SIGTERM)
    asked = [m.StopRequested(signal.SIGTERM)]
    assert among(asked)[1][-1] == leave
    state, instructions = among([*asked, diagnosed(0, 143, 15)])
    assert told(instructions) == [("stopped", 0)]
    assert isinstance(state, machine.Waiting)
    impatient, _ = machine.handle(AMONG_OTHERS, state, m.StopRequested(signal.SIGINT))
    assert isinstance(impatient, machine.Finished)
    assert impatient.code == 130


def test_a_node_that_is_done_may_still_leave() -> None:
    done = [m.WorkerEnded(0, 0, 0), m.WorkerEnded(0, 1, 0), m.StopRequested(15), diagnosed(0, 0)]
    leave = m.Leave(exit_codes.PREEMPTED, "preempted", signal.SIGTERM)
    assert among(done)[1][-1] == leave


def test_a_round_that_comes_after_the_goodbye_has_no_workers() -> None:
    state: machine.State = machine.Waiting()
    state, _ = machine.handle(AMONG_OTHERS, state, m.StopRequested(15))
    state, instructions = machine.handle(AMONG_OTHERS, state, RoundFormed(place(0, 0)))
    assert instructions == (m.TellRendezvous(Report(round=0, outcome="stopped")),)
    assert isinstance(state, machine.Waiting)
