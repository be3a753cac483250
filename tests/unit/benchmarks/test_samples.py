from dataclasses import replace
from typing import Any

import pytest

from benchmarks.machine import FAR, NEAR, UNKNOWN
from benchmarks.samples import (
    NO_COMMON,
    Case,
    Cell,
    Row,
    Sample,
    discarded,
    from_ranks,
    lacking,
    round_trips,
    rows,
)

LIMIT = 200.0
CASE = Case("all_reduce")


def sample(library: str, us: float, ns: float | None, after: float | None = None) -> Sample:
    return Sample(
        library=library,
        case=CASE,
        nbytes=8,
        round=0,
        median_us=us,
        mean_us=2 * us,
        before_ns=ns,
        after_ns=ns if after is None else after,
    )


def figure(us: float) -> dict[str, Any]:
    return {"bytes": 8, "median_us": us, "mean_us": us + 1, "before_ns": 90.0, "after_ns": 95.0}


def test_the_worst_rank_counts() -> None:
    (found,) = from_ranks(
        "ours", CASE, 3, [{"figures": [figure(8.0)]}, {"figures": [figure(96.0)]}]
    )
    assert (found.median_us, found.mean_us, found.round) == (96.0, 97.0, 3)
    assert len(found.per_rank) == 2


def test_ranks_that_measured_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        from_ranks("ours", CASE, 0, [{"figures": [figure(1.0)]}, {"figures": []}])


def test_ratios_use_runs_of_one_state_only() -> None:
    near, far = rows(
        [
            sample("ours", 1.0, 90),
            sample("ours", 10.0, 400),
            sample("gloo", 100.0, 90),
            sample("gloo", 200.0, 400),
        ],
        LIMIT,
    )
    assert (near.state, near.ratio("gloo")) == (NEAR, 100.0)
    assert (far.state, far.ratio("gloo")) == (FAR, 20.0)


def test_runs_in_which_the_state_changed_enter_no_ratio() -> None:
    changed = sample("ours", 50.0, 90, after=400)
    (row,) = rows([sample("ours", 1.0, 90), changed, sample("gloo", 3.0, 90)], LIMIT)
    assert row.ratio("gloo") == 3.0
    assert discarded([changed], LIMIT) == 1


def test_without_a_common_state_the_times_are_shown_and_no_ratio() -> None:
    (row,) = rows([sample("ours", 1.0, 90), sample("gloo", 3.0, 400)], LIMIT)
    assert row.state == NO_COMMON
    assert set(row.cells) == {"ours", "gloo"}
    assert row.ratio("gloo") is None


def test_memcpy_alone_is_no_company() -> None:
    (row,) = rows([sample("ours", 1.0, 90), sample("memcpy", 2.0, 90)], LIMIT)
    assert row.state == NO_COMMON


def test_runs_on_a_machine_without_round_trips_compare_among_themselves() -> None:
    (row,) = rows([sample("ours", 1.0, None), sample("gloo", 3.0, None)], LIMIT)
    assert (row.state, row.ratio("gloo")) == (UNKNOWN, 3.0)


def test_a_cell_is_the_median_over_the_runs() -> None:
    (row,) = rows([*(sample("ours", us, 90) for us in (1.0, 2.0, 50.0)), sample("gloo", 3.0, 90)],
                  LIMIT)  # fmt: skip
    assert row.cells["ours"] == Cell(median_us=2.0, mean_us=4.0, runs=3)


def test_ratios_say_how_many_times_as_long_the_other_takes() -> None:
    times = {"ours": 2.0, "mpich": 8.0, "openmpi": 5.0, "memcpy": 1.0}
    row = Row(CASE, 8, NEAR, {name: Cell(us, us, 1) for name, us in times.items()})
    assert row.best_of(["mpich", "openmpi", "gloo"]) == 2.5
    assert row.ratio("ours", "memcpy") == 2.0
    assert row.ratio("gloo") is row.best_of(["gloo"]) is None


def test_cases_stand_apart_and_say_where_they_ran() -> None:
    other = Case("all_reduce", "bfloat16", ranks=4, nodes=2)
    assert (CASE.place, other.place) == ("2", "2x2")
    samples = [sample(name, 1.0, 90) for name in ("ours", "gloo")]
    moved = [replace(taken, case=other) for taken in samples]
    assert {row.case for row in rows([*samples, *moved], LIMIT)} == {CASE, other}


def test_a_size_lacks_until_one_state_holds_enough_of_everyone() -> None:
    taken = [sample("ours", 1.0, 90), sample("gloo", 3.0, 400), sample("gloo", 3.0, 90)]
    assert lacking(taken, ["ours", "gloo"], LIMIT, enough=1) == []
    assert lacking(taken, ["ours", "gloo"], LIMIT, enough=2) == [8]
    assert lacking(taken[:2], ["ours", "gloo"], LIMIT, enough=1) == [8]


def test_unmeasured_round_trips_are_left_out() -> None:
    assert round_trips([sample("ours", 1.0, 90), sample("ours", 1.0, None)]) == [90, 90]
