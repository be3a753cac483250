import pytest
from support.sites import Life, overlaps

from benchmarks.elasticity import (
    bars_of_calm,
    bars_of_partitions,
    bars_of_storm,
    bars_of_times,
    of_calm,
    of_partitions,
    of_storm,
    of_times,
    parse,
)
from benchmarks.elasticity_scenes import Calm, Partition, Storm

CALM = Calm(seconds=60.0, strikes=1, rounds=0, longest_pause=0.06, words=0)


def life(number: int, rank: int, *steps: float, world: int = 2) -> Life:
    return Life(number, rank, world, host=rank + 1, pid=100 * number + rank, steps=steps)


def test_rounds_one_after_the_other_do_not_overlap() -> None:
    assert overlaps([life(0, 0, 1, 2), life(0, 1, 1, 3), life(1, 0, 3.1, 4)]) == []


def test_a_worker_that_runs_on_into_the_next_round_is_found() -> None:
    found = overlaps([life(0, 0, 1, 2), life(0, 1, 1, 3.5), life(2, 0, 3.1, 4)])
    assert found == ["round 2 began 0.400 s before others had ended"]


@pytest.mark.parametrize("second", [life(0, 0, 1), life(0, 1, 1, world=3)])
def test_a_rank_that_is_there_twice_and_two_sizes_of_one_round_are_found(second: Life) -> None:
    assert len(overlaps([life(0, 0, 1), second])) == 1


def test_the_longest_pause_counts_from_the_beginning_to_the_end() -> None:
    steps = life(0, 0, 1, 2, 2.5, 5)
    assert steps.pause(1.5, 3) == 0.5
    assert steps.pause(5.5, 9) == 3.5


def test_bars_hold_the_slowest() -> None:
    times = {"leader dies": [5.0, 6.6], "member drained": [0.2], "replacement joins": [1.0]}
    checks = list(bars_of_times(times, ttl=5.0))
    assert [str(check) for check in checks if not check.passed] == [
        "leader dies, s 6.6 <= 6.5: FAIL"
    ]


def test_a_restart_or_a_pause_or_a_word_is_a_disturbance() -> None:
    assert all(check.passed for check in bars_of_calm({"outage": CALM}))
    loud = Calm(seconds=60.0, strikes=1, rounds=1, longest_pause=1.5, words=3)
    assert not any(check.passed for check in bars_of_calm({"outage": loud}))


def test_a_worker_that_was_cut_off_ends_before_the_others_train() -> None:
    good, bad = Partition(4.5, 5.2, 0.4, []), Partition(5.3, 5.2, 0.4, ["round 1 began"])
    assert all(check.passed for check in bars_of_partitions({"member": good}))
    assert not any(check.passed for check in bars_of_partitions({"member": bad}))


def test_tables_say_what_was_measured_and_nothing_if_nothing_was() -> None:
    assert of_times({}) == of_calm({}) == of_partitions({}) == of_storm(None) == ""
    assert "0.20" in of_times({"member drained": [0.1, 0.2, 0.3]})
    assert "0.06" in of_calm({"outage": CALM})
    storm = Storm({"link fails": 3}, rounds=7, workers=20)
    assert "link fails" in of_storm(storm)
    assert all(check.passed for check in bars_of_storm(storm))
    assert not list(bars_of_storm(None))


def test_one_part_alone() -> None:
    options = parse(["--only", "etcd-kills"])
    assert options.etcd_kills == 100
    assert not any((options.times, options.outage, options.partition, options.rounds))
    assert parse(["--quick"]).rounds == 2
