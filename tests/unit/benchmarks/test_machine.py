import pytest

from benchmarks.machine import (
    DEFAULT_THRESHOLD_NS,
    FAR,
    MIXED,
    NEAR,
    UNKNOWN,
    classify,
    threshold,
)


def test_nothing_observed_gives_the_default_threshold() -> None:
    assert threshold([]) == DEFAULT_THRESHOLD_NS


def test_one_state_alone_gives_the_default_threshold() -> None:
    assert threshold([65, 80, 90, 95, 110, 125, 130]) == DEFAULT_THRESHOLD_NS


def test_a_clear_gap_decides_wherever_it_lies() -> None:
    assert 31 < threshold([28, 30, 31, 29, 150, 160, 165]) < 150
    assert 255 < threshold([240, 250, 255, 700, 720, 740]) < 700


def test_a_single_outlier_is_no_state() -> None:
    assert threshold([100, 105, 110, 115, 120, 125, 500]) == DEFAULT_THRESHOLD_NS


def test_moments_of_disturbance_do_not_move_the_threshold() -> None:
    assert threshold([100, 110, 120, 5000, 6000, 7000]) == DEFAULT_THRESHOLD_NS


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (90, 130, NEAR),
        (320, 560, FAR),
        (199, 200, MIXED),
        (400, 90, MIXED),
        (90, 9000, MIXED),
        (5000, 5000, MIXED),
        (None, 90, UNKNOWN),
        (None, None, UNKNOWN),
    ],
)
def test_a_run_has_a_state_only_if_both_looks_agree(
    before: float | None, after: float | None, state: str
) -> None:
    assert classify(before, after, 200.0) == state
