from benchmarks.bars import all_pass, checks, summary
from benchmarks.machine import FAR, NEAR
from benchmarks.samples import Cell, Row
from benchmarks.sizes import parse_size


def row(ranks: int, size: str, state: str = NEAR, **times: float) -> Row:
    cells = {name: Cell(us, us, 5) for name, us in times.items()}
    return Row(ranks, parse_size(size), state, cells)


def test_small_sizes_must_beat_both_mpis_and_gloo_thirtyfold() -> None:
    good = row(2, "8", ours=1.0, mpich=2.0, openmpi=1.1, gloo=31.0)
    slow = row(2, "8", ours=1.0, mpich=2.0, openmpi=0.9, gloo=31.0)
    assert all_pass(checks([good]))
    assert [str(check) for check in checks([slow]) if not check.passed] == [
        "(a) 2 ranks 8 near: openmpi/ours 0.90 >= 1: FAIL"
    ]


def test_the_memcpy_bar_holds_only_near() -> None:
    times = {"ours": 2.0, "mpich": 9.0, "openmpi": 9.0, "gloo": 20.0, "memcpy": 1.0}
    assert not all_pass(checks([row(2, "256Mi", **times)]))
    assert all_pass(checks([row(2, "256Mi", FAR, **times)]))


def test_four_ranks_need_half_as_much_again_up_to_one_mebibyte() -> None:
    times = {"ours": 1.0, "mpich": 1.4, "openmpi": 1.4}
    assert not all_pass(checks([row(4, "1Mi", **times)]))
    assert all_pass(checks([row(4, "4Mi", **times)]))


def test_a_missing_library_is_no_pass() -> None:
    found = checks([row(4, "8", ours=1.0, mpich=9.0)])
    assert not all_pass(found)
    assert "no data" in summary(found)


def test_no_rows_are_no_pass() -> None:
    assert not all_pass(checks([]))
    assert summary([]) == "no bar applies to these ranks and sizes"


def test_the_summary_names_each_bar_once_and_then_what_failed() -> None:
    passing = row(4, "4Mi", ours=1.0, mpich=2.0, openmpi=2.0)
    failing = row(4, "16Mi", ours=3.0, mpich=2.0, openmpi=4.0)
    assert summary(checks([passing, failing])).splitlines() == [
        "bar (c): FAIL (3 of 4 checks, 0 without data)",
        "  (c) 4 ranks 16Mi near: mpich/ours 0.67 >= 1: FAIL",
    ]
