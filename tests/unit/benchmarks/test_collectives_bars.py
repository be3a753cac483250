import pytest

from benchmarks.bars import all_pass
from benchmarks.collectives_bars import checks
from benchmarks.machine import FAR, NEAR
from benchmarks.samples import Case, Cell, Row
from benchmarks.sizes import parse_size


def row(case: Case, size: str, state: str = NEAR, **times: float) -> Row:
    cells = {name: Cell(us, us, 5) for name, us in times.items()}
    return Row(case, parse_size(size), state, cells)


def failing(*rows: Row) -> list[str]:
    return [str(check) for check in checks(rows) if check.passed is False]


@pytest.mark.parametrize("operation", ["all_gather", "broadcast", "all_to_all"])
def test_no_peer_may_be_faster_at_any_size(operation: str) -> None:
    case = Case(operation, ranks=4)
    times = {"ours": 2.0, "mpich": 2.0, "openmpi": 1.0, "gloo": 9.0}
    assert failing(row(case, "4Mi", **times)) == [
        f"{operation}, 4 ranks, 4Mi, near: openmpi/ours 0.5 >= 1: FAIL"
    ]


def test_a_missing_library_is_no_pass() -> None:
    assert not all_pass(checks([row(Case("all_gather"), "8", ours=1.0, mpich=9.0, gloo=9.0)]))


def test_the_smallest_all_reduce_must_be_clearly_faster_than_open_mpi() -> None:
    times = {"ours": 1.0, "mpich": 2.0, "openmpi": 1.2, "gloo": 99.0}
    assert failing(row(Case("all_reduce"), "8", **times)) == [
        "all_reduce, 2 ranks, 8, near: ours/openmpi 0.8333 <= 0.75: FAIL"
    ]


@pytest.mark.parametrize(
    ("size", "state", "limit"),
    [("64Ki", FAR, 1.5), ("1Mi", NEAR, 1.7), ("16Mi", NEAR, 1.7), ("64Mi", FAR, 3.0)],
)
def test_two_ranks_must_be_so_many_times_faster_than_both_mpis(
    size: str, state: str, limit: float
) -> None:
    case, others = Case("all_reduce"), {"ours": 1.0, "mpich": 9.0, "gloo": 99.0}
    assert not failing(row(case, size, state, openmpi=limit, **others))
    assert failing(row(case, size, state, openmpi=limit - 0.1, **others))


def test_in_the_middle_the_factor_holds_only_near() -> None:
    times = {"ours": 1.0, "mpich": 1.1, "openmpi": 1.1, "gloo": 99.0}
    assert not failing(row(Case("all_reduce"), "4Mi", FAR, **times))


def test_large_buffers_are_held_to_a_memcpy_and_registered_ones_closer() -> None:
    times = {"mpich": 9.0, "openmpi": 9.0, "gloo": 99.0, "memcpy": 1.0}
    good = row(Case("all_reduce"), "256Mi", ours=1.6, registered=1.15, **times)
    bad = row(Case("all_reduce"), "256Mi", ours=1.7, registered=1.2, **times)
    assert not failing(good)
    assert [text.split(": ")[1] for text in failing(bad)] == [
        "ours/memcpy 1.7 <= 1.6",
        "registered/memcpy 1.2 <= 1.15",
    ]


@pytest.mark.parametrize("ranks", [4, 8])
def test_more_ranks_need_half_as_much_again_up_to_one_mebibyte(ranks: int) -> None:
    times = {"ours": 1.0, "mpich": 1.4, "openmpi": 1.4, "gloo": 9.0}
    assert failing(row(Case("all_reduce", ranks=ranks), "1Mi", **times))
    assert not failing(row(Case("all_reduce", ranks=ranks), "4Mi", **times))


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 10.0), ("float16", 15.0)])
def test_halves_are_held_to_gloo_at_sixteen_mebibytes(dtype: str, limit: float) -> None:
    case = Case("all_reduce", dtype)
    assert not failing(row(case, "16Mi", ours=1.0, gloo=limit))
    assert failing(row(case, "16Mi", ours=1.0, gloo=limit - 0.1)) == [
        f"all_reduce {dtype}, 2 ranks, 16Mi, near: gloo/ours {limit - 0.1:g} >= {limit:g}: FAIL"
    ]
    assert not checks([row(case, "4Mi", ours=9.0, gloo=1.0)])


def test_a_barrier_has_no_bar() -> None:
    assert not checks([row(Case("barrier"), "8", ours=9.0, gloo=1.0)])
