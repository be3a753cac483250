"""How the machine replaces lost workers while the others continue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torshrun.agent import machine
from torshrun.agent import protocol as m
from torshrun.config.job import LaunchConfig, RendezvousConfig
from torshrun.rendezvous.base import (
    NodeAssignment,
    Report,
    RoundClosing,
    RoundFormed,
    RoundMended,
    RoundOver,
)
from torshrun.rendezvous.restart import REFUSED, History, judge

KILLED, FAIL = 9, 3 << 8
CONFIG = LaunchConfig(target="t", nproc_per_node=3, max_restarts=2)
PLACE = NodeAssignment(
    round=0,
    restarts=0,
    node_rank=0,
    num_nodes=1,
    first_rank=0,
    world_size=3,
    master_addr="127.0.0.1",
    master_port=1,
    jax_port=2,
)
ALL_JOINED = (m.Joined(0), m.Joined(1), m.Joined(2))
TOLD_LOST, TOLD_PARKED = m.TellStanding("lost", True), m.TellStanding("parked", True)
TOGETHER = replace(CONFIG, rendezvous=RendezvousConfig(backend="etcd", endpoints=()))


def place(number: int) -> NodeAssignment:
    return replace(PLACE, round=number, restarts=number)


def mended(number: int) -> RoundMended:
    return RoundMended(place(number))


def play(
    *events: m.Event, config: LaunchConfig = CONFIG
) -> tuple[machine.State, list[m.Instruction]]:
    state: machine.State = machine.Waiting()
    done: list[m.Instruction] = []
    for event in (RoundFormed(PLACE), *events):
        state, instructions = machine.handle(config, state, event)
        done += instructions
    return state, [each for each in done[1:] if not isinstance(each, m.TellLasting)]


def lasting(*events: m.Event, first: NodeAssignment = PLACE) -> list[str]:
    """What the rendezvous is told of whether the workers here can go on among other nodes."""
    state: machine.State = machine.Waiting()
    told: list[str] = []
    for event in (RoundFormed(first), *events):
        state, instructions = machine.handle(TOGETHER, state, event)
        told += [each.lasting for each in instructions if isinstance(each, m.TellLasting)]
    return told


def test_the_rendezvous_hears_whether_workers_can_go_on_among_other_nodes() -> None:
    assert lasting(m.Joined(0), m.Joined(1)) == []
    assert lasting(*ALL_JOINED) == ["any"]
    assert lasting(*ALL_JOINED, m.Left(1), m.Left(2)) == ["any", ""]
    assert lasting(m.Joined(0), m.Joined(1, is_fixed=True), m.Joined(2)) == ["same"]
    lost = (*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), m.Parked(0, 0), m.Parked(0, 2))
    assert lasting(*lost, mended(1), m.Joined(1)) == ["any"]


def test_workers_that_begin_among_others_that_go_on_are_replacements() -> None:
    begun = replace(place(3), kept=True, since=1)
    assert lasting(*ALL_JOINED, first=begun) == []
    assert lasting(m.Left(0), first=begun) == [""]
    state, _ = machine.handle(TOGETHER, machine.Waiting(), RoundFormed(begun))
    assert isinstance(state, machine.Running)
    assert state.fresh == {0, 1, 2}
    state, done = machine.handle(TOGETHER, state, RoundOver(3, "another"))
    assert done == (m.EndRound(), m.TellStanding("bare"))


def started_ahead(done: list[m.Instruction]) -> list[int]:
    return [rank for each in done if isinstance(each, m.StartAhead) for rank in each.ranks]


def without_starts(done: list[m.Instruction]) -> list[m.Instruction]:
    return [each for each in done if not isinstance(each, m.StartAhead)]


def test_survivors_park_and_the_lost_worker_is_replaced() -> None:
    state, done = play(*ALL_JOINED, m.WorkerEnded(0, 1, KILLED))
    assert machine.summary(state)[0] == "mending"
    assert done == [m.EndRound(), TOLD_LOST, m.StartAhead((1,))]
    parked = (*ALL_JOINED, m.WorkerEnded(0, 1, FAIL), m.Parked(0, 0), m.Parked(0, 2))
    state, done = play(*parked)
    assert done == [m.EndRound(), TOLD_LOST, m.StartAhead((1,)), TOLD_PARKED]
    state, done = play(*parked, mended(1))
    assert done[-1] == m.ReplaceWorkers((1,), place(1))
    assert isinstance(state, machine.Running)
    assert (state.attempt.round, state.attempt.restarts) == (1, 1)
    assert state.alive == {0, 1, 2}
    assert (state.joined, state.fresh) == ({0, 2}, {1})


@pytest.mark.parametrize(
    ("before", "config"),
    [
        ((m.Joined(0), m.Joined(1)), CONFIG),  # rank 2 would not come to meet the replacement
        ((*ALL_JOINED, m.Left(2)), CONFIG),
        ((), CONFIG),
        (ALL_JOINED, replace(CONFIG, max_restarts=0)),
        ((), TOGETHER),
        ((*ALL_JOINED, m.WorkerEnded(0, 0, 0)), CONFIG),
        ((*ALL_JOINED, m.Noticed(10)), CONFIG),
    ],
)
def test_otherwise_all_are_stopped_as_ever(
    before: tuple[m.Event, ...], config: LaunchConfig
) -> None:
    state, done = play(*before, m.WorkerEnded(0, 1, KILLED), config=config)
    assert isinstance(state, machine.Stopping)
    assert not any(isinstance(each, m.EndRound | m.StartAhead | m.ReplaceWorkers) for each in done)


def test_who_waits_hears_of_a_worker_that_has_ended_well() -> None:
    _, done = play(*ALL_JOINED, m.WorkerEnded(0, 1, 0))
    assert done == [m.TellExited(1)]
    left = [m.Left(0), m.Left(1), m.Left(2)]
    assert not play(*ALL_JOINED, *left, m.WorkerEnded(0, 1, 0))[1]
    assert not play(m.WorkerEnded(0, 1, 0))[1]


def test_all_nodes_hear_of_a_worker_that_has_ended_well_before_the_last_step() -> None:
    early = m.TellExited(1, on_all_nodes=True)
    _, done = play(*ALL_JOINED, m.WorkerEnded(0, 1, 0), config=TOGETHER)
    assert done == [early]
    left = m.Left(0), m.Left(2), m.Left(1, is_early=True)
    _, done = play(*ALL_JOINED, *left, m.WorkerEnded(0, 1, 0), config=TOGETHER)
    assert done == [early]
    others = m.WorkerEnded(0, 0, 0), m.WorkerEnded(0, 2, 0)
    _, done = play(*ALL_JOINED, *left, *others, m.WorkerEnded(0, 1, 0), config=TOGETHER)
    assert done[0] == early
    assert isinstance(done[1], m.StopWorkers)
    through = m.Left(0), m.Left(1), m.Left(2)
    assert not play(*ALL_JOINED, *through, m.WorkerEnded(0, 1, 0), config=TOGETHER)[1]


def test_a_replacement_gets_the_notice_that_came_before_it_was_started() -> None:
    lost = (*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), m.Parked(0, 0), m.Noticed(10))
    _, done = play(*lost, m.Parked(0, 2), mended(1), m.Joined(0), m.Joined(1))
    assert m.PassOn(10) in done
    assert done[-2:] == [m.ReplaceWorkers((1,), place(1)), m.PassOn(10, True, 1)]
    _, done = play(*REPLACED, m.Noticed(10), m.Joined(1))
    assert done[-1] == m.PassOn(10)


def test_who_does_not_park_is_killed_and_replaced_too() -> None:
    lost = (*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), m.Parked(0, 0))
    _, done = play(*lost, m.ParkingOver(0))
    assert done[-1] == m.KillWorkers((2,))
    _, done = play(*lost, m.ParkingOver(0), m.WorkerEnded(0, 2, KILLED))
    assert done[-2:] == [TOLD_PARKED, m.StartAhead((2,))]
    _, done = play(*lost, m.ParkingOver(0), m.WorkerEnded(0, 2, KILLED), mended(1))
    assert done[-1] == m.ReplaceWorkers((1, 2), place(1))


def test_when_all_survivors_die_the_round_has_failed() -> None:
    lost = [m.WorkerEnded(0, rank, KILLED) for rank in (1, 0, 2)]
    state, done = play(*ALL_JOINED, *lost)
    assert isinstance(state, machine.Stopping)
    assert state.cause == "failure"
    assert started_ahead(done) == [1, 0]  # and these are stopped with all others
    assert isinstance(done[-1], m.StopWorkers)


LOST_AND_PARKED = (*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), m.Parked(0, 0), m.Parked(0, 2))
REPLACED = (*LOST_AND_PARKED, mended(1))


def test_a_replacement_that_dies_before_it_joins_is_replaced() -> None:
    lost = (*REPLACED, m.WorkerEnded(1, 1, FAIL), m.Parked(1, 0), m.Parked(1, 2))
    state, done = play(*lost, mended(2))
    assert done[-1] == m.ReplaceWorkers((1,), place(2))
    assert state.attempt.restarts == 2


def test_a_replacement_that_has_not_joined_need_not_park() -> None:
    _, done = play(*REPLACED, m.WorkerEnded(1, 0, KILLED), m.Parked(1, 2))
    assert done[-1] == TOLD_PARKED


def test_an_end_that_was_noted_before_the_round_was_formed_counts() -> None:
    state, done = play(*REPLACED, m.WorkerEnded(0, 2, KILLED))
    assert isinstance(state, machine.Mending)
    assert state.lost == {2}
    assert done[-3:] == [m.EndRound(), TOLD_LOST, m.StartAhead((2,))]


def test_the_last_loss_of_the_budget_stops_all() -> None:
    spent = (*REPLACED, m.Joined(1), m.WorkerEnded(1, 0, FAIL), m.Parked(1, 1), m.Parked(1, 2))
    state, _ = play(*spent, mended(2), m.Joined(0), m.WorkerEnded(2, 2, KILLED))
    assert isinstance(state, machine.Stopping)


def test_of_a_hang_only_the_suspect_is_killed() -> None:
    _, done = play(*ALL_JOINED, m.Hung(0, 15, 2))
    assert done == [m.KillWorkers((2,), is_hang=True)]
    _, done = play(*REPLACED, m.Hung(1, 15, 0))
    assert done[-1] == m.KillWorkers((1,), is_hang=True)  # for which the others wait
    state, _ = play(*ALL_JOINED, m.Hung(0, 15, -1))
    assert isinstance(state, machine.Stopping)


def test_a_hang_of_another_node_is_left_to_its_agent_once() -> None:
    hung = m.Hung(0, 15, 0, "elsewhere")
    state, done = play(*ALL_JOINED, hung, config=TOGETHER)
    assert done == [m.WatchOn()]
    assert isinstance(state, machine.Running)
    state, _ = play(*ALL_JOINED, hung, hung, config=TOGETHER)
    assert isinstance(state, machine.Stopping)
    over = (*ALL_JOINED, RoundOver(0, "another"), m.Parked(0, 0), m.Parked(0, 1), m.Parked(0, 2))
    _, done = play(*over, mended(1), m.Hung(1, 15, 0, "unknown"), config=TOGETHER)
    assert done[-1] == m.WatchOn()
    _, done = play(*ALL_JOINED, m.Hung(0, 15, 0, "unknown"), config=TOGETHER)
    assert done == [m.KillWorkers((0,), is_hang=True)]


def test_a_request_to_stop_ends_the_mending() -> None:
    state, done = play(*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), m.StopRequested(15))
    assert isinstance(state, machine.Stopping)
    assert state.cause == "signal"
    assert isinstance(done[-1], m.Leave)


def test_workers_of_a_node_park_when_another_has_lost_some() -> None:
    over = (*ALL_JOINED, RoundOver(0, "another"), m.Parked(0, 0), m.Parked(0, 1), m.Parked(0, 2))
    state, done = play(*over, config=TOGETHER)
    assert done == [
        m.EndRound(),
        m.TellStanding("parked"),
    ]  # nobody was lost here, and nobody is started
    state, done = play(*over, mended(1), config=TOGETHER)
    assert done[-1] == m.ReplaceWorkers((), place(1))
    assert isinstance(state, machine.Running)
    assert state.joined == {0, 1, 2}


def test_a_node_whose_workers_cannot_go_on_says_so() -> None:
    state, done = play(m.Joined(0), m.Joined(1), RoundOver(0, "another"), config=TOGETHER)
    assert done == [m.TellStanding("unable")]
    over = (*ALL_JOINED, RoundOver(0, "another"), m.Left(2))
    state, done = play(*over, config=TOGETHER)
    assert done[-1] == m.TellStanding("unable")
    closing = RoundClosing(round=0, reason="they cannot", failed=True)
    state, _ = play(*over, closing, config=TOGETHER)
    assert isinstance(state, machine.Stopping)
    assert state.cause == "closing"


def test_with_other_nodes_all_workers_of_one_may_be_lost() -> None:
    lost = [m.WorkerEnded(0, rank, KILLED) for rank in (1, 0, 2)]
    state, done = play(*ALL_JOINED, *lost, config=TOGETHER)
    assert without_starts(done) == [m.EndRound(), TOLD_LOST, m.TellStanding("bare", True)]
    assert started_ahead(done) == [1, 0, 2]
    state, done = play(*ALL_JOINED, *lost, mended(1), config=TOGETHER)
    assert done[-1] == m.ReplaceWorkers((0, 1, 2), place(1))
    assert state.fresh == {0, 1, 2}  # type: ignore[union-attr]


def test_who_dies_after_all_have_parked_is_replaced_in_the_same_round() -> None:
    _, done = play(
        *LOST_AND_PARKED, m.WorkerEnded(0, 0, KILLED), m.WorkerEnded(0, 2, KILLED), config=TOGETHER
    )
    assert without_starts(done)[-2:] == [TOLD_PARKED, m.TellStanding("bare", True)]


def test_a_round_that_closes_while_workers_park_has_failed_where_some_were_lost() -> None:
    closing = RoundClosing(round=0, reason="another node was lost", failed=False)
    state, _ = play(*LOST_AND_PARKED, closing, config=TOGETHER)
    assert isinstance(state, machine.Stopping)
    assert state.cause == "failure"


def test_a_node_that_fails_passes_over_a_mended_round() -> None:
    """The round after it closes, and this node reports the one that it knows."""
    stopped = (*LOST_AND_PARKED, m.StopRequested(15), mended(1))
    state, _ = play(*stopped, config=TOGETHER)
    assert isinstance(state, machine.Stopping)
    closing = RoundClosing(round=1, reason="a node leaves", failed=False)
    state, _ = play(*stopped, closing, config=TOGETHER)
    assert isinstance(state, machine.Stopping)
    assert state.decided == closing


RANK = st.integers(0, 2)
EVENTS = st.one_of(
    RANK.map(m.Joined),
    st.sampled_from([KILLED, FAIL]).flatmap(
        lambda status: RANK.map(lambda rank: m.WorkerEnded(0, rank, status))
    ),
    RANK.map(lambda rank: m.Parked(0, rank)),
    st.just(m.ParkingOver(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_whatever_happens_somebody_is_waited_for(events: list[m.Event]) -> None:
    """Workers die once; when all survivors have parked the next round is asked for, once."""
    state: machine.State = machine.Waiting()
    for event in (RoundFormed(PLACE), *events):
        if isinstance(event, m.WorkerEnded) and event.rank not in getattr(state, "alive", ()):
            continue
        number = state.attempt.round
        now = event._replace(round=number) if hasattr(event, "_replace") and hasattr(
            event, "round"
        ) else event  # fmt: skip
        state, done = machine.handle(CONFIG, state, now)
        if isinstance(state, machine.Mending):
            assert state.awaited <= state.joined <= state.alive
            assert not state.lost & state.alive
            ahead = started_ahead(list(done))
            assert ahead == ([now.rank] if isinstance(now, m.WorkerEnded) else [])
            assert state.lost.issuperset(ahead)
            assert bool(state.awaited) == (TOLD_PARKED not in done)
            if TOLD_PARKED in done:
                state, done = machine.handle(CONFIG, state, mended(state.attempt.round + 1))
        if isinstance(state, machine.Running) and any(
            isinstance(each, m.ReplaceWorkers) for each in done
        ):
            assert state.alive == {0, 1, 2}
            assert state.joined


def test_a_replacement_that_fails_twice_in_the_same_way_restarts_all() -> None:
    config = replace(CONFIG, max_restarts=5)
    losses = [m.WorkerEnded(0, 1, KILLED), mended(1), m.WorkerEnded(1, 1, FAIL)]
    parked = [m.Parked(0, 0), m.Parked(0, 2), m.Parked(1, 0), m.Parked(1, 2)]
    before = (*ALL_JOINED, losses[0], *parked[:2], *losses[1:], *parked[2:], mended(2))
    state, done = play(*before, m.WorkerEnded(2, 1, FAIL), config=config)
    assert isinstance(state, machine.Stopping)
    assert m.TellUnfit(1, FAIL) in done
    for other in (KILLED, 4 << 8):  # by somebody else, and in another way
        state, done = play(*before, m.WorkerEnded(2, 1, other), config=config)
        assert isinstance(state, machine.Mending)
    joined = (*before, m.Joined(1), m.WorkerEnded(2, 1, FAIL))
    assert isinstance(play(*joined, config=config)[0], machine.Mending)


def test_what_join_refuses_ends_the_job_without_a_restart() -> None:
    report = Report(round=0, outcome="failed", code=1, startup="ValueError")
    ended = [m.WorkerEnded(0, rank, 1 << 8) for rank in range(3)]
    _, done = play(m.Refused(0), *ended, m.Diagnosed(report))
    told = [each.report for each in done if isinstance(each, m.TellRendezvous)]
    assert [each.startup for each in told] == [REFUSED]
    assert judge(5, History(), REFUSED) == "refused"


def test_a_replacement_that_join_refuses_is_not_replaced() -> None:
    begun = (*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), m.Parked(0, 0), m.Parked(0, 2), mended(1))
    state, _ = play(*begun, m.Refused(1), m.WorkerEnded(1, 1, FAIL))
    assert isinstance(state, machine.Running)
    assert not isinstance(state, machine.Mending)
    assert state.failing


def ends_at_commit() -> tuple[machine.State, list[m.Instruction]]:
    return play(*ALL_JOINED, RoundOver(0, "another", at_commit=True), config=TOGETHER)


def test_workers_that_leave_at_a_commit_are_waited_for() -> None:
    state, done = ends_at_commit()
    assert done == [m.EndRound(at_commit=True)]
    for rank in range(3):
        state, told = machine.handle(TOGETHER, state, m.Parked(0, rank))
        assert told == ((m.TellStanding("parked"),) if rank == 2 else ())


def test_workers_are_told_to_leave_at_once_when_no_commit_comes() -> None:
    state, _ = ends_at_commit()
    state, told = machine.handle(TOGETHER, state, RoundOver(0, "another", at_commit=True))
    assert told == ()
    state, told = machine.handle(TOGETHER, state, RoundOver(0, "another"))
    assert told == (m.EndRound(),)
    assert machine.handle(TOGETHER, state, RoundOver(0, "another"))[1] == ()


def test_when_a_worker_is_lost_the_others_do_not_wait_for_a_commit() -> None:
    state, _ = ends_at_commit()
    state, told = machine.handle(TOGETHER, state, m.WorkerEnded(0, 1, KILLED))
    assert told == (m.EndRound(), TOLD_LOST, m.StartAhead((1,)))


def test_a_replacement_that_joins_meanwhile_leaves_at_the_commit_too() -> None:
    kept = RoundFormed(replace(PLACE, kept=True))
    state, _ = machine.handle(TOGETHER, machine.Waiting(), kept)
    for event in (m.Joined(0), m.Joined(1), RoundOver(0, "another", at_commit=True), m.Joined(2)):
        state, _ = machine.handle(TOGETHER, state, event)
    assert isinstance(state, machine.Mending)
    assert state.awaited == {0, 1, 2}


def fails_as_newcomer(min_nodes: int, *, joins: bool = False) -> list[m.Instruction]:
    """What is done at the second failure of a rank of a node that came to a job of two nodes."""
    config = replace(TOGETHER, min_nodes=min_nodes, max_nodes=3, max_restarts=5)
    came = replace(PLACE, kept=True, num_nodes=2)
    state, _ = machine.handle(config, machine.Waiting(), RoundFormed(came))
    events: list[m.Event] = [m.Joined(0)] if joins else []
    events += [m.WorkerEnded(0, 1, FAIL), *[m.Parked(0, 0)] * joins]
    events += [RoundMended(replace(came, round=1, restarts=1)), m.WorkerEnded(1, 1, FAIL)]
    for event in events:
        state, done = machine.handle(config, state, event)
    assert isinstance(state, machine.Stopping)
    diagnosed = m.Diagnosed(Report(round=1, outcome="failed", code=3, cause="rank 1: exit code 3"))
    return [*done, *machine.handle(config, state, diagnosed)[1]]


@pytest.mark.parametrize(
    ("min_nodes", "joins", "outcome"),
    [(1, False, "lost"), (2, False, "failed"), (1, True, "failed")],
)
def test_a_newcomer_whose_program_fails_leaves_if_there_are_enough_others(
    min_nodes: int, joins: bool, outcome: str
) -> None:
    done = fails_as_newcomer(min_nodes, joins=joins)
    assert m.TellUnfit(1, FAIL, outcome == "lost") in done
    (told,) = [each.report for each in done if isinstance(each, m.TellRendezvous)]
    assert (told.outcome, told.code, told.cause) == (outcome, 3, "rank 1: exit code 3")


COPIED = replace(CONFIG, recover=True)


def test_a_copy_takes_the_place_of_a_worker_that_was_killed_alone() -> None:
    state, told = play(*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), config=COPIED)
    assert isinstance(state, machine.Mending)
    assert told[-1] == m.StartAhead((1,))


@pytest.mark.parametrize(
    "events",
    [
        (*ALL_JOINED, m.WorkerEnded(0, 1, FAIL)),
        (m.Joined(0), m.Joined(2), m.WorkerEnded(0, 1, KILLED), m.SettleOver(0)),
        (*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), m.WorkerEnded(0, 2, FAIL)),
        (*ALL_JOINED, m.WorkerEnded(0, 1, KILLED), m.CopyMissing(0)),
    ],
    ids=["an exit code", "no copy yet", "an exit code meanwhile", "no copy left"],
)
def test_all_workers_are_restarted_if_no_copy_would_do(events: tuple[m.Event, ...]) -> None:
    state, told = play(*events, config=COPIED)
    state, more = machine.handle(COPIED, state, m.SettleOver(0))
    assert isinstance(state, machine.Stopping)
    assert state.cause == "failure"
    assert any(isinstance(each, m.StopWorkers) for each in (*told, *more))


def test_copies_take_the_place_of_all_workers() -> None:
    killed = [m.WorkerEnded(0, rank, KILLED) for rank in range(3)]
    state, told = play(*ALL_JOINED, *killed, config=COPIED)
    assert isinstance(state, machine.Mending)
    assert [each for each in told if isinstance(each, m.StartAhead)] == [
        m.StartAhead((0,)),
        m.StartAhead((1,)),
        m.StartAhead((2,)),
    ]
    assert told[-2:] == [TOLD_PARKED, m.StartAhead((2,))]
    state, _ = machine.handle(COPIED, state, mended(1))
    state, told_later = machine.handle(COPIED, state, m.WorkerEnded(1, 0, KILLED))
    assert m.StartAhead((0,)) in told_later
