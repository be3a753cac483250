"""What is a hang and what is not, by samples as an agent would take them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torshrun.health.detector import Hang, HangDetector, Sample
from torshrun.health.pages import Awaited, Collective, WorkerStatus

TIMEOUT = 20.0
Make = Callable[[float], Sample]


def in_operation(
    sequence: int, *, active: bool = True, rounds: int = 0, group: int = 0, ranks: int = 2
) -> Collective:
    return Collective(
        group=group,
        ranks=ranks,
        sequence=sequence,
        active=active,
        rounds=rounds or sequence,
        operation="barrier",
        dtype="float32",
        reduction="SUM",
        count=0,
        root=-1,
        whole=True,
    )


def status(*collectives: Collective, step: int | None = None) -> WorkerStatus:
    return WorkerStatus(initialised=True, step=step, collectives=collectives)


def waiting(rank: int, sequence: int = 5, **facts: int) -> Make:
    """A rank that spins in a collective."""
    return lambda now: Sample(rank=rank, status=status(in_operation(sequence, **facts)), cpu=now)


def computing(rank: int, sequence: int = 4, **facts: int) -> Make:
    """A rank that is silent, busy and in no collective."""
    found = status(in_operation(sequence, active=False, **facts))
    return lambda now: Sample(rank=rank, status=found, cpu=now)


def awaiting(rank: int, whom: int) -> Make:
    """A rank that spins until a stage of another one has sent something."""
    awaited = Awaited(whom, "waits for F5 of stage 0")
    found = WorkerStatus(initialised=True, doing=awaited.what, awaited=awaited)
    return lambda now: Sample(rank=rank, status=found, cpu=now)


def idle(rank: int, state: str = "S") -> Make:
    return lambda now: Sample(rank=rank, cpu=1.0, state=state)


def observe(*ranks: Make, seconds: float = 100.0, interval: float = 2.0) -> Hang | None:
    """The hang that is found within so many seconds."""
    return observe_with(HangDetector(TIMEOUT, 3 * interval), 0.0, seconds, interval, *ranks)


def observe_with(
    detector: HangDetector, begin: float, seconds: float, interval: float, *ranks: Make
) -> Hang | None:
    for number in range(int(seconds / interval) + 1):
        now = begin + number * interval
        hang = detector.observe(now, [make(now) for make in ranks])
        if hang is not None:
            return hang
    return None


def found(hang: Hang | None) -> Hang:
    assert hang is not None
    return hang


def test_a_rank_that_never_comes_is_suspected() -> None:
    hang = found(observe(waiting(0), computing(1)))
    assert hang.suspect == 1
    assert TIMEOUT <= hang.seconds < TIMEOUT + 4
    assert [state.waits_in is not None for state in hang.ranks] == [True, False]


def test_just_before_the_timeout_there_is_no_hang() -> None:
    assert observe(waiting(0), computing(1), seconds=TIMEOUT - 2) is None


def test_the_rank_furthest_behind_is_suspected() -> None:
    hang = found(observe(waiting(0), computing(1, 4), computing(2, 3), waiting(3)))
    assert hang.suspect == 2


def test_a_stopped_rank_is_suspected_before_one_that_is_further_behind() -> None:
    stopped = status(in_operation(5, rounds=5))
    ranks = (
        waiting(0, 6),
        computing(1, 3),
        lambda now: Sample(rank=2, status=stopped, state="T"),
    )
    assert found(observe(*ranks)).suspect == 2


def test_a_rank_left_behind_inside_the_operation_is_suspected() -> None:
    hang = found(observe(waiting(0, rounds=9), waiting(1, rounds=8), waiting(2, rounds=9)))
    assert hang.suspect == 1


def test_without_anybody_missing_the_lowest_rank_stands_for_all() -> None:
    assert found(observe(waiting(1), waiting(0))).suspect == 0


def test_a_rank_that_has_not_made_the_group_yet_is_suspected() -> None:
    hang = found(observe(waiting(0, 0), lambda now: Sample(rank=1, cpu=now)))
    assert hang.suspect == 1


def test_ranks_outside_of_a_smaller_group_are_not_suspected() -> None:
    outside = computing(2)
    ranks = (waiting(0, group=1), computing(1, group=1), outside)
    assert found(observe(*ranks)).suspect == 1


def test_a_rank_that_ended_is_suspected() -> None:
    gone = status(in_operation(4, active=False))
    hang = found(observe(waiting(0), lambda now: Sample(rank=1, status=gone, alive=False)))
    assert hang.suspect == 1


def test_what_a_dead_rank_was_in_is_no_hang() -> None:
    inside = status(in_operation(4))
    dead = lambda now: Sample(rank=0, status=inside, alive=False)  # noqa: E731
    assert observe(dead, computing(1)) is None
    assert observe(dead) is None


def test_operations_that_follow_each_other_are_no_hang() -> None:
    ranks = [lambda now, r=r: Sample(rank=r, status=status(in_operation(int(now)))) for r in (0, 1)]
    assert observe(*ranks) is None


def test_an_operation_that_advances_is_no_hang() -> None:
    ranks = [
        lambda now, r=r: Sample(rank=r, status=status(in_operation(5, rounds=int(now) + 1)))
        for r in (0, 1)
    ]
    assert observe(*ranks) is None


def test_another_group_that_goes_on_hides_nothing() -> None:
    def both(now: float) -> Sample:
        return Sample(rank=0, status=status(in_operation(5), in_operation(int(now), group=1)))

    hang = found(observe(both, computing(1)))
    assert hang.ranks[0].waits_in == in_operation(5)


def test_a_step_reported_by_another_thread_does_not_hide_a_collective() -> None:
    def stepping(now: float) -> Sample:
        return Sample(rank=0, status=status(in_operation(5), step=int(now)))

    assert found(observe(stepping, computing(1))).suspect == 1


def test_silence_without_cpu_is_a_hang() -> None:
    hang = found(observe(idle(1), idle(0)))
    assert hang.suspect == 0
    assert hang.seconds >= TIMEOUT


def test_in_silence_a_stopped_rank_is_suspected() -> None:
    assert found(observe(idle(0), idle(1, "T"))).suspect == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda now: Sample(rank=1, cpu=now),
        lambda now: Sample(rank=1, cpu=0.05 * now),
        lambda now: Sample(rank=1, output=int(now)),
        lambda now: Sample(rank=1, status=status(step=int(now))),
        lambda now: Sample(rank=1, status=status(in_operation(int(now), active=False))),
    ],
    ids=["computes", "computes a little", "writes", "reports steps", "runs collectives"],
)
def test_one_worker_at_work_speaks_for_the_node(other: Make) -> None:
    assert observe(idle(0), other) is None


@pytest.mark.parametrize("interval", [0.2, 2.0])
def test_what_a_waiting_process_uses_by_the_way_is_no_work(interval: float) -> None:
    def napping(now: float) -> Sample:
        return Sample(rank=0, cpu=int(now * 0.5) / 100)  # 0.5 %, in hundredths of a second

    assert observe(napping, interval=interval) is not None


def test_work_that_ends_begins_the_wait() -> None:
    worked = lambda now: Sample(rank=0, cpu=min(now, 30.0))  # noqa: E731
    assert observe(worked, seconds=30 + TIMEOUT - 2) is None
    assert observe(worked, seconds=30 + TIMEOUT + 4) is not None


def test_without_living_workers_there_is_no_hang() -> None:
    assert observe(lambda now: Sample(rank=0, alive=False)) is None
    assert observe() is None


def test_a_worker_that_ends_counts_as_progress() -> None:
    ending = lambda now: Sample(rank=1, alive=now < 15)  # noqa: E731
    assert observe(idle(0), ending, seconds=15 + TIMEOUT - 3) is None
    assert observe(idle(0), ending, seconds=15 + TIMEOUT + 3) is not None


@pytest.mark.parametrize("ranks", [(waiting(0), computing(1)), (idle(0), idle(1))])
def test_a_pause_of_the_observer_counts_for_nothing(ranks: tuple[Make, ...]) -> None:
    detector = HangDetector(TIMEOUT, patience=6)
    assert observe_with(detector, 0, TIMEOUT - 2, 2, *ranks) is None
    resumed = 1000.0
    assert observe_with(detector, resumed, TIMEOUT - 2, 2, *ranks) is None
    assert observe_with(detector, resumed + TIMEOUT, 2, 2, *ranks) is not None


def test_ranks_of_another_round_begin_afresh() -> None:
    detector = HangDetector(TIMEOUT, patience=6)
    assert observe_with(detector, 0, TIMEOUT - 2, 2, idle(0)) is None
    assert observe_with(detector, TIMEOUT, TIMEOUT - 4, 2, idle(7)) is None


def test_ranks_that_wait_for_a_stage_hang() -> None:
    hang = observe(computing(0), awaiting(1, 0), awaiting(2, 1))
    assert hang is not None
    assert (hang.suspect, round(hang.seconds)) == (0, 20)


def test_who_waits_for_another_is_no_suspect() -> None:
    """Rank 2 waits in a collective for rank 1, which waits for a stage of rank 0."""
    behind = status(in_operation(4, active=False))
    awaited = Awaited(0, "waits for F5 of stage 0")
    middle = WorkerStatus(initialised=True, collectives=behind.collectives, awaited=awaited)
    hang = observe(computing(0, group=1), lambda now: Sample(rank=1, status=middle), waiting(2))
    assert hang is not None
    assert hang.suspect == 0


def test_ranks_that_wait_in_a_circle_are_all_there_is() -> None:
    hang = observe(awaiting(0, 1), awaiting(1, 0))
    assert hang is not None
    assert hang.suspect in (0, 1)
