import pytest

from benchmarks.collectives import OPERATIONS, contenders, parse, start, work
from benchmarks.peers import MEMCPY
from benchmarks.samples import Case


def test_all_means_the_five_operations_and_each_case_has_all_sizes() -> None:
    options = parse(["--op", "all", "--ranks", "2,8", "--sizes", "8,64Mi"])
    found = work(options)
    assert {case.operation for case, _ in found} == set(OPERATIONS)
    assert {case.ranks for case, _ in found} == {2, 8}
    assert [group for case, group in found if case == Case("broadcast")] == [(8,), (2**26,)]


def test_a_barrier_is_measured_once() -> None:
    assert work(parse(["--op", "barrier", "--ranks", "2"])) == [(Case("barrier"), (8,))]


def test_quick_is_little() -> None:
    options = parse(["--quick"])
    assert (options.rounds, options.extra_rounds, options.ranks) == (1, 0, (2,))
    assert options.seconds <= 0.1


def test_registered_buffers_are_one_more_library() -> None:
    names = [peer.name for peer in contenders(parse(["--registered", "--peers", "ours"]))]
    assert names == ["ours", "registered", "memcpy"]


@pytest.mark.parametrize(
    "wrong",
    [["--op", "gossip"], ["--dtype", "int4"], ["--ranks", "1"], ["--ranks", "99"],
     ["--peers", "nccl"], ["--sizes", "3"], ["--rounds", "0"]],
)  # fmt: skip
def test_what_is_not_known_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong)
    assert wrong[0] in capsys.readouterr().err


def test_memcpy_is_one_process_whatever_the_ranks(tmp_path) -> None:
    assert "torshrun" not in start(MEMCPY, Case("all_reduce", ranks=8), tmp_path)
