import pytest

pytest.importorskip("torch")
from benchmarks.nn_gpt import MOST_LOSS_DIFFERENCE, MOST_TIMES_TORCH, Round, checks, main


def test_both_learn_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick"]) == 0
    assert "loss curves apart" in capsys.readouterr().out


def test_the_median_round_decides() -> None:
    rounds = [Round(MOST_TIMES_TORCH * factor, 1.0) for factor in (0.5, 0.9, 9.0)]
    assert [check.passed for check in checks(rounds, 0.0)] == [True, True]
    assert [check.passed for check in checks(rounds[1:], 0.0)] == [False, True]


def test_curves_that_part_fail() -> None:
    assert not checks([Round(1.0, 1.0)], 2 * MOST_LOSS_DIFFERENCE)[1].passed
    assert checks([], 0.0)[0].passed is None
