"""What the leader concludes from all nodes' reports, and how all nodes come to know it."""

from __future__ import annotations

from typing import Any

import pytest
from support.led_nodes import TTL, act, close, header, inside, node, reported, view

from torshrun.failure.blocked_at import BlockedAt
from torshrun.failure.exported_reports import decode_finding, encode
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.rank_report import RankReport
from torshrun.failure.root_cause import RootCause
from torshrun.failure.suspect import Suspect
from torshrun.rendezvous.actions import Conclude, Form
from torshrun.rendezvous.rows import LONGEST_TEXT, NodeRow, VerdictRow, can_be_read

CLOSING = header(phase="closing", failed=True)


def own(rank: int, **facts: Any) -> RankReport:
    return RankReport(rank=rank, **{"end": "failed", "how": "exit code 1", **facts})


def told(name: str, place: int, *witnesses: RankReport, **changes: Any) -> NodeRow:
    """A failed node of two workers, with their testimonies."""
    facts = {"first_rank": 2 * place, "nproc": 2, "testimony": encode(witnesses), "code": 1}
    return reported(name, place, **{"outcome": "failed", **facts, **changes})


def finding(action: Any) -> RootCause | None:
    verdict = action.verdict if isinstance(action, Conclude) else action
    return decode_finding(verdict.finding)


def follower(rank: int, *ranks: int) -> RankReport:
    blame = Suspect(how="lost", ranks=ranks)
    return own(rank, reading=Diagnosis(Kind.PEER_LOST), blame=blame)


def failure(rank: int) -> RankReport:
    return own(rank, reading=Diagnosis(Kind.EXCEPTION), alike=str(rank), at=5.0)


def test_the_verdict_has_the_root_cause_of_all_nodes() -> None:
    first = told("a", 0, follower(0, 3), follower(1), cause="rank 0: exit code 1 (peer lost)")
    second = told("b", 1, failure(3), follower(2, 3), cause="rank 3: exit code 7", code=7)
    action = act(view(first, second, header=CLOSING))
    found = finding(action)
    assert found is not None
    assert (found.ranks, found.certainty) == ((3,), "certain")
    assert found.headline == "rank 3 failed first: exit code 1, host b"
    assert (action.verdict.code, action.verdict.reason) == (7, "node b: rank 3: exit code 7")
    assert can_be_read(action.verdict)


def test_the_verdict_tells_of_whom_the_root_cause_names() -> None:
    done = reported("b", 1, "succeeded", first_rank=2, nproc=2)
    first = told("a", 0, follower(0, 3), follower(1), cause="rank 0: exit code 1 (peer lost)")
    assert act(view(first, done, header=CLOSING)).verdict.reason == "rank 3: early exit"
    for cause in ("rank 1: node lost", "ranks 0-1: hung", "no rank: hung"):
        first = told("a", 0, failure(0), follower(1), cause=cause)
        other = told("b", 1, follower(2), follower(3))
        assert act(view(first, other, header=CLOSING)).verdict.reason == "rank 0: exception"


def test_the_order_in_which_reports_come_does_not_matter() -> None:
    rows = told("a", 0, follower(0), follower(1)), told("b", 1, failure(3), follower(2))
    found = [finding(act(view(*order, header=CLOSING))) for order in (rows, rows[::-1])]
    assert found[0] == found[1]


def test_of_nodes_that_fail_alike_the_one_that_told_first_is_named_first() -> None:
    def missing(rank: int, at: float) -> RankReport:
        return own(rank, reading=Diagnosis(Kind.PERMISSION), alike="x", at=at)

    late, early = told("b", 1, missing(2, 9000.0)), told("a", 0, missing(0, 5.0))
    found = finding(act(view(late, early, header=CLOSING)))
    assert found is not None
    assert (found.ranks, found.certainty) == ((0, 2), "certain")
    assert found.how == "exit code 1, first rank 2, host b"


def test_two_nodes_that_fail_by_themselves_are_undecided() -> None:
    rows = told("a", 0, failure(1)), told("b", 1, failure(2))
    found = finding(act(view(*rows, header=CLOSING)))
    assert found is not None
    assert (found.ranks, found.certainty) == ((1, 2), "undecided")


def test_a_node_that_succeeded_while_another_needed_it_is_named() -> None:
    done = reported("b", 1, "succeeded", first_rank=2, nproc=2)
    found = finding(act(view(told("a", 0, follower(0, 3), follower(1)), done, header=CLOSING)))
    assert found is not None
    assert (found.ranks, found.reading.kind) == ((3,), Kind.EARLY_EXIT)


def test_the_next_round_tells_of_the_one_before() -> None:
    rows = told("a", 0, failure(0)), told("b", 1, follower(2))
    closing = header(phase="closing", failed=True, max_restarts=1)
    formed = act(view(*rows, header=closing))
    assert isinstance(formed, Form)
    found = finding(formed)
    assert found is not None
    assert found.ranks == (0,)


def test_a_node_that_was_lost_is_named_when_too_few_are_left() -> None:
    seen = view(
        inside("a", 0, first_rank=0, nproc=2),
        inside("b", 1, first_rank=2, nproc=2),
        header=header(),
    )
    seen.put(told("a", 0, follower(0, 3), follower(1)), 5)
    close(seen, CLOSING, 1.0)
    seen.drop("b")
    action = act(seen, 1.0 + 2 * TTL + 600)
    assert isinstance(action, Conclude)
    found = finding(action)
    assert found is not None
    assert (found.nodes, found.reading.kind) == ((1,), Kind.NODE_LOST)
    assert "node b was lost" in found.reading.why


def test_a_node_that_cannot_run_workers_is_named_with_why() -> None:
    unable = reported(
        "b",
        1,
        "lost",
        state="left",
        leaving="lost",
        first_rank=2,
        nproc=2,
        leaving_reason="rank 2: cannot start train: Permission denied (exec)",
    )
    seen = view(reported("a", 0, "stopped"), unable, header=CLOSING)
    action = act(seen, 1000.0)
    found = finding(action)
    assert found is not None
    assert found.nodes == (1,)
    assert "Permission denied" in found.reading.why


def test_a_node_that_tells_nothing_of_its_ranks_is_not_overlooked() -> None:
    mute = told("a", 0, testimony="", cause="rank 1: killed by SIGSEGV, exit code 139 (crashed)")
    found = finding(act(view(mute, told("b", 1, failure(2)), header=CLOSING)))
    assert found is not None
    assert (found.ranks, found.certainty) == ((0, 2), "undecided")
    follows = told("a", 0, testimony="nonsense", follows=True)
    found = finding(act(view(follows, told("b", 1, failure(2)), header=CLOSING)))
    assert found is not None
    assert (found.ranks, found.certainty) == ((2,), "certain")


def test_a_node_accuses_no_rank_of_having_said_what_it_has_not() -> None:
    liar = told("b", 1, failure(0), follower(1, 0))
    found = finding(act(view(told("a", 0, failure(1)), liar, header=CLOSING)))
    assert found is not None
    assert 0 not in found.ranks


def test_where_nobody_failed_nothing_is_found() -> None:
    rows = reported("a", 0, "succeeded"), reported("b", 1, "succeeded")
    assert act(view(*rows, header=header())).verdict.finding == ""
    stopping = view(
        reported("a", 0, "stopped"),
        reported("b", 1, "stopped"),
        node("c"),
        header=header(phase="closing"),
    )
    assert act(stopping).finding == ""


def test_a_hang_is_told_by_where_ranks_stood() -> None:
    inside_ = BlockedAt(
        call="all_reduce", full="all_reduce (operation 2)", group=0, sequence=2, entered={0: 2}
    )
    away = BlockedAt(place="load (t.py:4)", group=0, sequence=1, entered={0: 1})

    def at(rank: int, standing: BlockedAt) -> RankReport:
        return RankReport(rank=rank, end="stopped", how="killed by SIGTERM", standing=standing)

    waiting = encode([at(0, inside_), at(1, inside_)], "no progress for 6 s")
    hung = told("a", 0, outcome="hung", testimony=waiting)
    other = told("b", 1, at(2, inside_), at(3, away), outcome="stopped")
    found = finding(act(view(hung, other, header=CLOSING)))
    assert found is not None
    assert (found.ranks, found.certainty) == ((3,), "likely")
    assert found.headline.startswith("rank 3 most likely failed first: hung, then killed by")


def test_a_thousand_nodes_of_many_ranks_fit_into_a_verdict() -> None:
    rows = []
    for place in range(1000):
        ranks = range(8 * place, 8 * place + 8)
        witnesses = [follower(rank, 4321) if rank != 4321 else failure(rank) for rank in ranks]
        facts = {"first_rank": ranks[0], "nproc": 8, "testimony": encode(witnesses)}
        rows.append(reported(f"n{place}", place, "failed", code=1, **facts))
    closing = header(1000, phase="closing", failed=True, max_nodes=1000)
    action = act(view(*rows, header=closing))
    found = finding(action)
    assert found is not None
    assert (found.ranks, found.certainty) == ((4321,), "certain")
    assert len(action.verdict.finding) <= LONGEST_TEXT


@pytest.mark.parametrize("text", ["x" * LONGEST_TEXT, "{}", '{"ranks": "1"}'])
def test_a_finding_of_a_verdict_may_be_anything(text: str) -> None:
    verdict = VerdictRow(outcome="failed", code=1, reason="x", finding=text)
    assert can_be_read(verdict)
    assert decode_finding(text) is None
