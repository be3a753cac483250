"""Failures of ranks that could not have what somebody else held."""

from __future__ import annotations

import pytest
from support.exits import an_exit, raised

from torshrun.failure.blocked_at import BlockedAt
from torshrun.failure.exit_diagnosis import diagnose
from torshrun.failure.graph import find
from torshrun.failure.held_locks import says_held
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.rank_report import RankReport
from torshrun.failure.root_cause import RootCause
from torshrun.failure.suspect import Suspect

LOCKED = "sqlite3.OperationalError: database is locked"
FLOCK = (
    b'Traceback (most recent call last):\n  File "t.py", line 3, in f\n'
    b"    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    b"BlockingIOError: [Errno 11] Resource temporarily unavailable\n"
)


@pytest.mark.parametrize(
    "said",
    [
        LOCKED,
        "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) table is locked: runs",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "filelock._error.Timeout: The file lock '/data/x.lock' could not be acquired.",
        "RuntimeError: could not acquire lock on /cache within 5 s",
        "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11)",
        "OSError: [Errno 26] Text file busy: './tool'",
        "OSError: [Errno 16] Device or resource busy: '/mnt/data'",
        "portalocker.exceptions.AlreadyLocked: x",
        "duckdb.IOException: Could not set lock: Conflicting lock is held in python (PID 7)",
    ],
)
def test_errors_about_what_somebody_else_holds(said: str) -> None:
    assert says_held(said)
    alone = RankReport(rank=1, end="failed", reading=Diagnosis(Kind.EXCEPTION), said=said)
    other = RankReport(rank=0, end="stopped", standing=BlockedAt(call="barrier"))
    assert _found(alone, other).certainty == "likely"


@pytest.mark.parametrize(
    "said", ["KeyError: 'block'", "RuntimeError: block 3 is empty", "failed to lock memory pages"]
)
def test_other_errors_are_not(said: str) -> None:
    assert not says_held(said)


def test_a_lock_is_told_from_a_process_that_cannot_be_had() -> None:
    reading = diagnose(an_exit(0, 1 << 8, stderr=FLOCK))
    assert reading.kind is Kind.EXCEPTION
    assert "could not get a lock" in reading.why
    assert "could not get a lock" in diagnose(an_exit(0, 1 << 8, stderr=raised(LOCKED))).why
    fork = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    assert diagnose(an_exit(0, 1 << 8, stderr=raised(fork))).kind is Kind.LIMIT


def test_who_holds_what_another_rank_could_not_have_may_be_to_blame_as_well() -> None:
    waiting = BlockedAt(call="barrier", place="save (t.py:8)")
    wants = RankReport(
        rank=1, end="failed", reading=Diagnosis(Kind.EXCEPTION), said=LOCKED, rival=0, alike="x"
    )
    lost = Suspect(how="lost", ranks=(1,), op="barrier")
    follows = RankReport(rank=0, end="failed", blame=lost, standing=waiting)
    for holder in (follows, RankReport(rank=0, end="stopped", standing=waiting)):
        finding = _found(wants, holder)
        assert (finding.ranks, finding.certainty) == ((0, 1), "undecided")
        assert finding.reading.kind is Kind.DEADLOCK
        assert "rank 0 waited in barrier at save (t.py:8)" in finding.reading.why
    away = RankReport(rank=0, end="stopped", standing=BlockedAt(place="t.py:5"))
    assert _found(wants, away).reading.kind is Kind.EXCEPTION
    assert _found(wants, away).ranks == (0, 1)


def _found(*witnesses: RankReport) -> RootCause:
    finding = find(witnesses)
    assert finding is not None
    return finding
