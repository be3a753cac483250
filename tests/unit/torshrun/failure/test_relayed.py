"""Errors of one rank that all others are handed, and meetings that programs make by hand."""

from __future__ import annotations

import pytest

from torshrun.failure.blocked_at import ALL_RANKS, BlockedAt
from torshrun.failure.graph import find
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.rank_report import RankReport
from torshrun.failure.root_cause import RootCause

IN_ALL_REDUCE = BlockedAt(call="all_reduce", place="train.py:9")
COUNTS = BlockedAt(
    place="meet (t.py:7)", line="while came < world: time.sleep(1)", waits_for=ALL_RANKS
)


def raised(rank: int, said: str, alike: str = "") -> RankReport:
    reading = Diagnosis(Kind.EXCEPTION)
    return RankReport(
        rank=rank, end="failed", how="exit code 1", said=said, alike=alike or said, reading=reading
    )


def stopped(rank: int, standing: BlockedAt) -> RankReport:
    return RankReport(rank=rank, end="stopped", standing=standing, reading=Diagnosis(Kind.STOPPED))


def verdict(*witnesses: RankReport, hang: str = "") -> tuple[tuple[int, ...], str, Kind]:
    finding = find(witnesses, hang=hang)
    assert isinstance(finding, RootCause)
    return finding.ranks, finding.certainty, finding.reading.kind


@pytest.mark.parametrize(
    "said",
    [
        "api.CheckpointException: CheckpointException ranks:dict_keys([1])",
        "RuntimeError: validation failed on rank(s) [1]: KeyError('d')",
        "Aborted: rank 1 raised OSError: disk gone",
        "RuntimeError: an error of rank 1: no such label",
    ],
)
def test_whose_error_all_ranks_tell_is_named(said: str) -> None:
    everybody = [raised(rank, said) for rank in range(3)]
    assert verdict(*everybody) == ((1,), "likely", Kind.EXCEPTION)
    own = raised(1, "KeyError: 'd'")
    assert verdict(everybody[0], own, everybody[2]) == ((1,), "likely", Kind.EXCEPTION)


def test_an_error_of_all_is_nobodys_although_it_is_raised_at_two_places() -> None:
    said = "SaveError: parts of ranks [0, 1] failed"
    assert verdict(raised(0, said, "a"), raised(1, said, "b"))[:2] == ((0, 1), "likely")


@pytest.mark.parametrize(
    "said",
    [
        "ValueError: rank 1 is not a power of two",
        "RuntimeError: rank 0 failed to receive from rank 1",
        "AssertionError: Caught AssertionError in DataLoader worker process 1.",
        "RuntimeError: rank 7 failed",
        "ValueError: bad",
    ],
)
def test_what_names_nobody_who_failed_is_left_to_others(said: str) -> None:
    assert verdict(*(raised(rank, said) for rank in range(3)))[0] == (0, 1, 2)


@pytest.mark.parametrize(
    "said",
    [
        "TimeoutError: start: only 2 of 3 ranks came",
        "NotAll: 2/3 workers joined after 5 s",
        "RuntimeError: peers present: 2 of 3",
        "RuntimeError: 2 out of 3 expected processes are there",
    ],
)
def test_who_was_not_counted_did_not_come(said: str) -> None:
    counting = [raised(rank, said, "same") for rank in (0, 2)]
    assert verdict(*counting, stopped(1, IN_ALL_REDUCE)) == ((1,), "likely", Kind.MISSING)
    still = stopped(2, COUNTS)
    assert verdict(counting[0], still, stopped(1, IN_ALL_REDUCE))[:2] == ((1,), "likely")
    done = RankReport(rank=1, end="done", how="exit code 0")
    assert verdict(*counting, done) == ((1,), "likely", Kind.EARLY_EXIT)
    other = said.replace("2", "1")  # they are not the ones who came
    assert verdict(*(raised(rank, other, "same") for rank in (0, 2)), stopped(1, IN_ALL_REDUCE))[
        0
    ] == (0, 2)


def test_who_is_not_where_others_still_count_did_not_come() -> None:
    counting = [stopped(rank, COUNTS) for rank in (0, 2)]
    away = stopped(1, IN_ALL_REDUCE)
    assert verdict(*counting, away, hang="no progress") == ((1,), "likely", Kind.MISSING)
    everybody = [*counting, stopped(1, COUNTS)]
    assert verdict(*everybody, hang="no progress") == ((), "likely", Kind.HUNG)
