"""Where the time of steps went, from records whose truth is known."""

from __future__ import annotations

import math
import random

import pytest
from support.made_records import MadeJob, MadeRecord, operation

from torsh_runtime.monitoring.analysis import Breakdown, analyse
from torsh_runtime.monitoring.notes import Group


def slow(rank: int, step: int) -> float:
    return 0.040 if rank == 2 else 0.030


def step_of(found: list[Breakdown]) -> Breakdown:
    assert all(each[4:9] == pytest.approx(found[0][4:9]) for each in found)
    return found[0]


def test_the_slow_rank_is_the_one_that_the_others_wait_for() -> None:
    found = analyse(MadeJob(ranks=4, work=slow).run(10))
    assert found.source == "notes"
    assert len(found.steps) == 40
    fast, slowest = step_of(found.of_rank(0)), step_of(found.of_rank(2))
    assert (fast.own, fast.waiting, fast.moving) == pytest.approx((0.035, 0.010, 0.002))
    assert fast.waiting_for == pytest.approx({2: 0.010})
    assert fast.sections == pytest.approx({"data": 0.005})
    assert (slowest.own, slowest.waiting, slowest.exposed) == pytest.approx((0.045, 0.0, 0.002))


@pytest.mark.parametrize(
    ("overlap", "hidden", "exposed"), [(0.03, 0.02, 0.0), (0.008, 0.008, 0.012)]
)
def test_what_work_hides_is_no_exposed_communication(
    overlap: float, hidden: float, exposed: float
) -> None:
    job = MadeJob(ranks=2, work=lambda rank, step: 0.01, overlap=overlap, background=0.02)
    step = step_of(analyse(job.run(5)).of_rank(1))
    assert (step.hidden, step.exposed - job.move) == pytest.approx((hidden, exposed))
    assert step.own == pytest.approx(0.015 + overlap)


def test_whom_a_rank_waited_for_in_the_background() -> None:
    job = MadeJob(ranks=3, work=slow, overlap=0.004, background=0.001)
    step = step_of(analyse(job.run(5)).of_rank(0))
    # It is 10 ms late, of which 4 are worked on; and it works on for 4 ms, of which 1 is moved in.
    assert step.waiting_for == pytest.approx({2: 0.006 + 0.003})
    assert step.moving == pytest.approx(0.001 + job.move)


def test_when_all_came_is_found_where_ranks_are_not_told() -> None:
    job = MadeJob(ranks=4, work=slow, knows_when_all_came=False)
    assert analyse(job.run(5)).of_rank(0)[0].waiting_for == pytest.approx({2: 0.010})


def test_without_comparable_clocks_who_waited_least_came_last() -> None:
    records = MadeJob(ranks=3, work=slow).run(5)
    for rank, record in records.items():
        shift = 1e6 * rank
        record.operations = [
            each._replace(
                entered=each.entered + shift,
                came=None if each.came is None else each.came + shift,
                left=None if each.left is None else each.left + shift,
            )
            for each in record.operations
        ]
        record.notes = [note._replace(time=note.time + shift) for note in record.notes]
    step = analyse(records, bound=None).of_rank(0)[0]
    assert step.waiting_for == pytest.approx({2: 0.010})


def test_nobody_is_blamed_for_a_rank_without_a_record() -> None:
    records = MadeJob(ranks=4, work=slow).run(5)
    del records[2]  # type: ignore[attr-defined]
    assert set(analyse(records).of_rank(0)[0].waiting_for) == {-1}


def test_steps_that_nobody_noted_are_found_by_what_repeats() -> None:
    job = MadeJob(ranks=3, work=slow, is_noted=False, overlap=0.001, background=0.001)
    records = job.run(20)
    assert len({len(record.operations) for record in records.values()}) == 1
    found = analyse(records)
    assert found.source == "pattern"
    numbers = [{each.step for each in found.of_rank(rank)} for rank in range(3)]
    assert numbers[0] == numbers[1] == numbers[2]
    assert len(numbers[0]) >= 18
    assert found.of_rank(0)[5].waiting == pytest.approx(0.009)


def test_without_any_pattern_steps_are_seconds() -> None:
    chance = random.Random(1)
    job = MadeJob(ranks=2, work=lambda rank, step: chance.uniform(0, 0.1), is_noted=False)
    records = job.run(100)
    for record in records.values():
        sizes = random.Random(2)
        record.operations = [
            each._replace(elements=sizes.randrange(1 << 30)) for each in record.operations
        ]
    found = analyse(records)
    assert found.source == "windows"
    assert {round(each.seconds, 9) for each in found.steps} == {1.0}
    assert all(each.own + each.exposed == pytest.approx(1) for each in found.steps)


@pytest.mark.parametrize("seed", range(20))
def test_without_the_slow_rank_it_is_as_fast_as_it_would_have_been(seed: int) -> None:
    chance = random.Random(seed)
    ranks, slowest = chance.randrange(2, 6), 0
    late = chance.uniform(0.005, 0.03)
    base = [chance.uniform(0.01, 0.03)] * ranks

    def job(extra: float) -> MadeJob:
        return MadeJob(
            ranks=ranks,
            work=lambda rank, step: base[rank] + extra * (rank == slowest),
            overlap=0.004 if seed % 2 else 0.0,
            background=chance.uniform(0.001, 0.008),
        )

    with_it, chance_state = job(late), chance.getstate()
    chance.setstate(chance_state)
    without = MadeJob(**{**vars(with_it), "work": lambda rank, step: base[rank]})
    found = analyse(with_it.run(12))
    truth = with_it.run(12)[0].notes[-1].time - 1000.0
    truth /= without.run(12)[0].notes[-1].time - 1000.0
    assert found.speedup_without(slowest) == pytest.approx(truth, abs=1e-6)
    others = [found.speedup_without(rank) for rank in range(1, ranks)]
    assert ranks == 2 or others == pytest.approx([1.0] * (ranks - 1))


def test_a_program_of_another_shape_is_scaled() -> None:
    records = MadeJob(ranks=3, work=slow).run(6)
    record = records[2]  # it alone has a group that nobody else has
    record.operations.append(
        operation(
            "barrier", number=99, entered=1000.01, came=1000.01, left=1000.011, ranks=1, group=5
        )
    )
    assert analyse(records).speedup_without(2) == pytest.approx(1.27, abs=0.02)


def test_messages_are_waited_for_until_they_are_sent() -> None:
    sender, receiver = MadeRecord(), MadeRecord()
    group = Group(7, 2, "pp", "4,9")
    for record in (sender, receiver):
        record.groups.append(group)
        for step in range(3):
            record.note("step", 10.0 + step, value=step)
    for step in range(2):
        at = 10.0 + step
        sender.operations.append(
            operation(
                "send", number=step, sequence=step, entered=at + 0.6, left=at + 0.7, group=7, root=1
            )
        )
        receiver.operations.append(
            operation(
                "recv", number=step, sequence=step, entered=at + 0.1, left=at + 0.8, group=7, root=0
            )
        )
    step = analyse({4: sender, 9: receiver}).of_rank(9)[0]
    assert step.waiting_for == pytest.approx({4: 0.5})
    assert step.moving == pytest.approx(0.2)


@pytest.mark.parametrize("seed", range(30))
def test_nonsense_in_records_hurts_nobody(seed: int) -> None:
    chance = random.Random(seed)
    job = MadeJob(ranks=3, work=slow, overlap=0.001, background=0.002, is_noted=seed % 3 > 0)
    records = job.run(8)
    odd = [math.nan, math.inf, -math.inf, 0.0, 1e300, -1e300, 1000.1]
    for record in records.values():
        for _ in range(chance.randrange(1, 30)):
            place = chance.randrange(len(record.operations))
            name = chance.choice(["entered", "came", "left", "sequence", "root", "ranks", "group"])
            value = chance.choice(odd)
            if name in ("sequence", "root", "ranks", "group"):
                value = chance.choice([0, 1, 1 << 24, -1])
            record.operations[place] = record.operations[place]._replace(**{name: value})
            if record.notes:
                place = chance.randrange(len(record.notes))
                changed = {"time": chance.choice(odd), "value": chance.choice(odd)}
                record.notes[place] = record.notes[place]._replace(**changed)
        record.groups.append(Group(1, 1 << 40, "\x1b[2J", "0-99999999,,x"))
        chance.shuffle(record.operations)
    found = analyse(records)
    for each in found.steps:
        assert each.own >= -1e-6 or abs(each.begin) > 1e9
        assert each.exposed >= 0
        assert each.hidden >= 0
    for rank in records:
        found.speedup_without(rank)
    assert analyse({}).steps == []
    assert analyse({0: MadeRecord()}).steps == []
