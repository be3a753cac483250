"""Root causes and reports, from exits made up for the purpose."""

from __future__ import annotations

from typing import Any

import pytest

from torshrun import failure
from torshrun.failure import Exit

PEER_LOST = (
    b'noise\nTraceback (most recent call last):\n  File "t.py", line 3, in <module>\n'
    b"torsh_runtime.errors.PeerLost: rank 1 was lost during all_reduce\n"
)
VALUE_ERROR = b'Traceback (most recent call last):\n  File "t.py", line 3\nValueError: bad\n'


def an_exit(rank: int, status: int, **facts: Any) -> Exit:
    values = {"host": "h", "pid": 100 + rank, "seconds": 1.25, "stopped": False, **facts}
    return Exit(rank=rank, status=status, **values)


def test_success_has_no_cause() -> None:
    assert failure.root_cause([an_exit(0, 0), an_exit(1, 0)]) is None
    assert failure.root_cause([]) is None


def test_the_first_failure_is_the_cause() -> None:
    first, second = an_exit(1, 3 << 8), an_exit(0, 4 << 8)
    assert failure.root_cause([an_exit(2, 0), first, second]) is first


def test_one_that_lost_a_peer_is_not_the_cause_even_if_it_ended_first() -> None:
    killed = an_exit(1, 9)
    assert failure.root_cause([an_exit(0, 1 << 8, stderr=PEER_LOST), killed]) is killed


def test_one_that_was_stopped_is_not_the_cause() -> None:
    lost = an_exit(0, 1 << 8, stderr=PEER_LOST)
    assert failure.root_cause([lost, an_exit(1, 15, stopped=True)]) is lost


def test_if_all_were_stopped_the_first_of_them_is() -> None:
    stopped = an_exit(1, 15, stopped=True)
    assert failure.root_cause([stopped, an_exit(0, 9, stopped=True)]) is stopped


def test_an_earlier_traceback_does_not_make_a_follower() -> None:
    assert failure.followed(an_exit(0, 1 << 8, stderr=PEER_LOST))
    assert not failure.followed(an_exit(0, 1 << 8, stderr=PEER_LOST + VALUE_ERROR))
    assert not failure.followed(an_exit(0, 9, stderr=PEER_LOST))
    assert not failure.followed(an_exit(0, 1 << 8, stderr=b"I like torsh_runtime PeerLost\n"))


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, 137), (15, 143), (139, 139)]
)
def test_exit_codes(status: int, code: int) -> None:
    assert an_exit(0, status).code == code


def test_the_report_names_the_cause_then_the_others_then_the_outlook() -> None:
    exits = [
        an_exit(0, 1 << 8, stderr=PEER_LOST),
        an_exit(1, 9, stderr=VALUE_ERROR, log="/logs/1"),
        an_exit(3, 15, stopped=True),
        an_exit(2, 7 << 8),
    ]
    assert failure.describe(exits, "restarting").split("\n") == [
        "torshrun: rank 1 failed first: killed by SIGKILL, exit code 137, host h, pid 101, "
        "after 1.2 s",
        "  the last lines of its stderr:",
        "  | Traceback (most recent call last):",
        '  |   File "t.py", line 3',
        "  | ValueError: bad",
        "  its output is kept in /logs/1",
        "  after it: rank 0 lost its peer, rank 2 exit code 7, rank 3 stopped by torshrun",
        "  restarting",
    ]


def test_the_report_shows_the_end_of_a_long_stderr_and_survives_any_bytes() -> None:
    stderr = b"\n".join(b"line %d \xff" % number for number in range(100)) + b"\n"
    lines = failure.describe([an_exit(0, 1 << 8, stderr=stderr)], "x").split("\n")
    shown = [line for line in lines if line.startswith("  | ")]
    assert len(shown) == failure.TAIL_LINES
    assert shown[-1] == "  | line 99 \\xff"


def test_silence_is_said_to_be_silence() -> None:
    assert "nothing to stderr" in failure.describe([an_exit(0, 1 << 8)], "x")


def test_an_error_file_stands_in_for_a_missing_traceback_only() -> None:
    told = failure.describe([an_exit(0, 1 << 8, account="KeyError: 1", stderr=b"warn\n")], "x")
    assert "  | KeyError: 1" in told
    both = failure.describe([an_exit(0, 1 << 8, account="KeyError: 1", stderr=VALUE_ERROR)], "x")
    assert "KeyError" not in both


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"message": {"message": "m", "extraInfo": {"py_callstack": "stack"}}}, "stack"),
        ({"message": {"message": "m"}}, "m"),
        ({"message": "m"}, "m"),
        ({"message": {"message": "m", "extraInfo": 3}}, "m"),
        ({"message": 4}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_error_files(document: object, text: str) -> None:
    assert failure.read_account(document) == text


def test_signals_without_a_name_have_a_number() -> None:
    assert failure.signal_name(9) == "SIGKILL"
    assert failure.signal_name(50) == "signal 50"
