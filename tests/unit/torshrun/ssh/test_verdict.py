"""What follows when hosts end, and with which code the job does."""

from __future__ import annotations

import signal

import pytest

from torshrun import exit_codes
from torshrun.ssh.reasons import explain
from torshrun.ssh.verdict import Ended, code_of, follows

LOST = Ended("n", None, True, "cut")
NOT_BEGUN = Ended("n", 2, False)


def ended(code: int) -> Ended:
    return Ended("n", code, True)


@pytest.mark.parametrize(
    ("endings", "running", "fewest", "next_step"),
    [
        ([LOST], 3, 4, "stop"),
        ([LOST], 3, 3, ""),
        ([LOST, LOST], 2, 3, "stop"),
        ([LOST], 0, 1, ""),
        ([NOT_BEGUN], 3, 4, "stop"),
        ([ended(0)], 3, 4, "wait"),
        ([ended(7), LOST], 2, 4, "wait"),
        ([ended(0)], 0, 1, ""),
    ],
)
def test_what_follows(endings: list[Ended], running: int, fewest: int, next_step: str) -> None:
    assert follows(endings, running, fewest) == next_step


@pytest.mark.parametrize(
    ("endings", "stopped", "code"),
    [
        ([ended(0), ended(0)], None, 0),
        ([LOST, ended(0)], None, 0),
        ([ended(exit_codes.PREEMPTED), ended(0)], None, 0),
        ([ended(exit_codes.LOST), ended(7), ended(7)], None, 7),
        ([ended(exit_codes.PREEMPTED)] * 2, None, exit_codes.PREEMPTED),
        ([LOST, ended(exit_codes.PREEMPTED)], exit_codes.LOST, exit_codes.LOST),
        ([NOT_BEGUN, ended(exit_codes.PREEMPTED)], 2, 2),
        ([LOST, LOST], None, exit_codes.LOST),
    ],
)
def test_the_jobs_code(endings: list[Ended], stopped: int | None, code: int) -> None:
    assert code_of(endings, stopped) == code


def test_a_signal_counts_if_no_agent_has_ended_in_order() -> None:
    assert code_of([LOST], None, signal.SIGINT) == 128 + signal.SIGINT
    assert code_of([LOST], None, signal.SIGTERM) == exit_codes.PREEMPTED
    assert code_of([ended(7), LOST], None, signal.SIGINT) == 7


def test_advice_follows_the_words_of_ssh_before_its_code() -> None:
    said = "banner\nme@n1: Permission denied (publickey).\r\n"
    text = explain(255, said)
    assert text.startswith("banner / me@n1: Permission denied (publickey). (exit code 255, ssh's")
    assert "ssh-copy-id" in text
    assert explain(127, "sh: x: nothing").endswith("--remote-python")
    assert explain(3, "") == "it said nothing (exit code 3)"
    assert explain(-9, "") == "it said nothing (ssh was ended by signal 9)"
    assert "\x1b" not in explain(None, "\x1b[31mred")
