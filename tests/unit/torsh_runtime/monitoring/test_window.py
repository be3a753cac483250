"""How ranks spent a window: shares of own work, waiting and moving, and what they do at its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.operations import note, operation

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.window import (
    Sections,
    Spent,
    arrived,
    doing,
    notes_until,
    operations_until,
    present_pace,
    spent,
    waited_for,
)


def told(found: Spent) -> tuple[float, float, float, float]:
    return found.covered, round(found.own, 6), round(found.waited, 6), round(found.moved, 6)


def test_own_work_waiting_and_moving_are_the_window() -> None:
    held = [operation(0, -20.0, -19.0, -18.0), operation(1, -8.0, -5.0, -4.0)]
    found = spent(held, -10.0, 0.0)
    assert told(found) == (10.0, 6.0, 3.0, 1.0)
    assert (found.nbytes, found.share(found.waited)) == (32, 0.3)


def test_what_goes_on_counts_as_waiting_and_what_tells_nothing_as_moving() -> None:
    held = [operation(0, -20.0, -19.0, -18.0), operation(1, -8.0, None, -6.0), operation(2, -3.0)]
    assert told(spent(held, -10.0, 0.0)) == (10.0, 5.0, 3.0, 2.0)


def test_only_waiting_for_what_goes_on_in_the_background_is_time_in_operations() -> None:
    sent = operation(1, -9.0, -4.0, -2.0, in_background=True, group=5)
    wait = operation(2, -6.0, None, -1.5, name="wait", awaited=1)
    held = [operation(0, -20.0, -19.0, -18.0), sent]
    assert told(spent(held, -10.0, 0.0)) == (10.0, 10.0, 0.0, 0.0)
    assert told(spent([*held, wait], -10.0, 0.0)) == (10.0, 5.5, 2.0, 2.5)
    lost = [held[0], wait]
    assert told(spent(lost, -10.0, 0.0)) == (10.0, 5.5, 0.0, 4.5)


def test_operations_within_others_count_once() -> None:
    batch = operation(1, -8.0, None, -4.0, name="batch")
    inside = operation(2, -7.0, None, -5.0, name="recv")
    held = [operation(0, -20.0, -19.0, -18.0), batch, inside]
    assert told(spent(held, -10.0, 0.0)) == (10.0, 6.0, 0.0, 4.0)


def test_the_window_begins_where_the_record_does() -> None:
    assert told(spent([operation(7, -2.0, -1.0, -0.5)], -10.0, 0.0)) == (2.0, 0.5, 1.0, 0.5)
    nothing = spent([], -10.0, 0.0)
    assert (told(nothing), nothing.share(1.0)) == ((0.0,) * 4, 0.0)


times = st.floats() | st.floats(-20.0, 5.0)
operations = st.builds(
    operation, st.integers(0, 2**62), times, st.none() | times, st.none() | times,
    name=st.sampled_from(["all_reduce", "wait", "recv"]), in_background=st.booleans(),
)  # fmt: skip


@given(st.lists(operations, max_size=8), st.floats(-10.0, 0.0))
def test_nonsense_has_shares_within_the_whole(held: list[Operation], end: float) -> None:
    found = spent(held, end - 5.0, end)
    for seconds in (found.own, found.waited, found.moved):
        assert -1e-6 <= found.share(seconds) <= 1 + 1e-6
    waited_for(arrived({0: held, 1: held[1:]}), end - 5.0, end)
    doing(operations_until(held, end), [])


# ---- for whom


def test_ranks_wait_for_the_last_one_to_come() -> None:
    records = {
        0: [operation(0, -9.0, -5.0, -4.9), operation(1, -4.0)],
        1: [operation(0, -5.0, -5.0, -4.9)],
        2: [operation(0, -7.0, -5.0, -4.9), operation(1, -3.0)],
    }
    assert waited_for(records, -8.0, 0.0) == {0: {1: 7.0}, 1: {}, 2: {1: 5.0}}


def test_a_rank_that_stands_still_in_an_operation_waits_for_nobody_who_has_come() -> None:
    came = {rank: [operation(0, -9.0 + rank, -6.0)] for rank in range(3)}
    stopped = operation(0, -8.5)
    records = {**came, 3: [stopped]}
    assert arrived(records) == {**came, 3: [stopped._replace(came=-7.0)]}
    assert told(spent(arrived(records)[3], -8.5, 0.0)) == (8.5, 0.0, 1.5, 7.0)
    assert waited_for(arrived(records), -9.0, 0.0)[3] == {2: 1.5}
    late = {**records, 2: []}  # which has not come
    assert arrived(late) == late


def test_it_is_not_told_for_whom_a_rank_waits_whose_peers_are_not_seen() -> None:
    assert waited_for({0: [operation(0, -9.0, -5.0, -4.9)]}, -10.0, 0.0) == {0: {}}
    message = operation(0, -9.0, name="recv")
    assert waited_for({0: [message], 1: [operation(0, -5.0)]}, -10.0, 0.0) == {0: {}, 1: {}}


def test_who_waits_for_an_operation_of_the_background_waits_for_its_last() -> None:
    sent = operation(1, -9.0, -4.0, -2.0, in_background=True)
    wait = operation(2, -6.0, None, -1.0, name="wait", awaited=1)
    late = operation(1, -4.0, -4.0, -2.0)
    assert waited_for({0: [sent, wait], 3: [late]}, -10.0, 0.0) == {0: {3: 2.0}, 3: {}}


# ---- what a rank does


def test_an_operation_that_the_program_is_in() -> None:
    background = operation(2, -1.0, in_background=True)
    held = [operation(0, -9.0, -8.0, -7.0), operation(1, -3.0), background]
    found = doing(held, [note("begin", -5.0, "forward"), note("begin", -4.0, "layer")])
    assert found.operation == held[1]
    assert (found.sections, found.since) == (("forward", "layer"), -3.0)


def test_a_wait_is_for_an_operation() -> None:
    sent = operation(1, -9.0, in_background=True)
    wait = operation(2, -6.0, name="wait", awaited=1)
    assert doing([sent, wait], [])[:2] == (wait, sent)
    assert doing([wait], [])[:2] == (wait, None)


def test_operations_that_go_on_for_long_do_not_stretch_the_record() -> None:
    old = operation(1, -100.0, in_background=True)
    assert told(spent([old, operation(5000, -2.0, -1.0, -0.5)], -10.0, 0.0))[0] == 2.0


def test_a_section_and_own_work() -> None:
    held = [operation(0, -9.0, -8.0, -7.0)]
    found = doing(held, [note("begin", -5.0, "data")])
    assert (found.operation, found.sections, found.since) == (None, ("data",), -5.0)
    ended = doing(held, [note("begin", -5.0, "data"), note("end", -4.0, "data")])
    assert (ended.operation, ended.sections, ended.since) == (None, (), -7.0)
    assert doing([], []).since is None


def test_sections_of_other_threads_and_ends_without_a_begin() -> None:
    sections = Sections()
    for each in (
        note("end", 1.0, "lost"),
        note("begin", 1.0, "step"),
        note("begin", 2.0, "read", thread=1),
        note("begin", 2.0, "step"),  # within one of its name
        note("begin", 3.0, "left open"),
        note("end", 4.0, "step"),
    ):
        sections.take(each)
    assert sections.stack() == (("step", 1.0),)
    assert (sections.seconds, sections.running(6.0)) == ({}, {"step": 5.0, "read": 4.0})
    sections.take(note("end", 7.0, "step"))
    assert (sections.seconds, sections.stack()) == ({"step": 6.0}, ())


def test_sections_take_no_room_without_end() -> None:
    sections = Sections()
    for number in range(1000):
        sections.take(note("begin", number, "deep"))
        sections.take(note("begin", number, "wide", thread=number))
    assert len(sections.stack()) == 64
    assert len(sections.running(1000.0)) == 2


# ---- how far it is


def test_the_pace_falls_while_a_step_is_late() -> None:
    notes = [note("step", -10.0 + step, value=step) for step in range(3)]
    notes.insert(1, note("scalar", -10.0, "step/samples", 32.0))
    paces = [present_pace(notes, now) for now in (-6.5, -4.0, 30.0)]
    assert [each.per_second for each in paces] == [1.0, 0.25, pytest.approx(1 / 38)]
    assert [each.samples_per_second for each in paces] == [16.0, 4.0, pytest.approx(16 / 38)]
    assert present_pace(notes[:1], 0.0).per_second is None
    assert present_pace([], 0.0).step is None


# ---- before


def test_a_record_as_it_was_before() -> None:
    held = [operation(0, -9.0, -8.0, -2.0), operation(1, -1.0)]
    (before,) = operations_until(held, -5.0)
    assert (before.came, before.left, before.state) == (-8.0, None, "running")
    (waiting,) = operations_until(held, -8.5)
    assert waiting.came is None
    notes = [note("step", -9.0), note("step", -1.0)]
    assert notes_until(notes, -5.0) == notes[:1]
