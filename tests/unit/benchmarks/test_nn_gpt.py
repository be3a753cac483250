import subprocess
import sys

import pytest

pytest.importorskip("torch")
from benchmarks import nn_gpt
from benchmarks.nn_gpt import MOST_LOSS_DIFFERENCE, MOST_TIMES_TORCH, Round, checks


def test_both_learn_alike() -> None:
    """In a process of its own: it sets torch's threads, and forks of this one would die of that."""
    command = [sys.executable, nn_gpt.__file__, "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "loss curves apart" in done.stdout


def test_the_median_round_decides() -> None:
    rounds = [Round(MOST_TIMES_TORCH * factor, 1.0) for factor in (0.5, 0.9, 9.0)]
    assert [check.passed for check in checks(rounds, 0.0)] == [True, True]
    assert [check.passed for check in checks(rounds[1:], 0.0)] == [False, True]


def test_curves_that_part_fail() -> None:
    assert not checks([Round(1.0, 1.0)], 2 * MOST_LOSS_DIFFERENCE)[1].passed
    assert checks([], 0.0)[0].passed is None
