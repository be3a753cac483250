"""What an exit status means."""

from __future__ import annotations

import pytest
from support.exits import an_exit

from torshrun.failure.exits import how
from torshrun.signals import signal_name


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, 137), (15, 143), (139, 139)]
)
def test_exit_codes(status: int, code: int) -> None:
    assert an_exit(0, status).code == code
    assert an_exit(0, status).failed == (code != 0)


def test_one_that_hung_has_failed_even_if_it_then_obeyed() -> None:
    hung = an_exit(0, 0, hung="all_reduce", stopped=True)
    assert (hung.failed, hung.code) == (True, 1)
    assert how(an_exit(0, 15, hung="x")) == "hung, then killed by SIGTERM, exit code 143"


def test_signals_without_a_name_have_a_number() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(50) == "signal 50"
    assert how(an_exit(0, 50)) == "killed by signal 50, exit code 178"
