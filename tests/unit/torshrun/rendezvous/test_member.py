"""One node's way through the rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torshrun import exit_codes
from torshrun.rendezvous.base import (
    Report,
    ReportOutcome,
    RoundClosing,
    RoundFormed,
    RoundMended,
    StandingBy,
)
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.rows import Header, PlaceRow, VerdictRow
from torshrun.rendezvous.settings import NodeFacts, Settings

RULES = Settings(run_id="r", min_nodes=2, max_nodes=2)
FACTS = NodeFacts(node="a", host="a", address="10.0.0.1", endpoint="tcp:10.0.0.1:1", nproc=2)
OPEN = Header(
    number=0, phase="open", token="t", fence=5, size=2, max_nodes=2, max_restarts=1, world_size=4
)
CLOSING = replace(OPEN, phase="closing", reason="node b was lost")
NEXT = replace(OPEN, number=1, token="u")


def waiting() -> Member:
    return Member(RULES, FACTS)


def entering() -> Member:
    member = waiting()
    assert member.take_header(OPEN, 7) == ()
    place = PlaceRow(round=0, token="t", node_rank=1, first_rank=2)
    assert member.take_place("t", place) == ()
    return member


def inside() -> Member:
    member = entering()
    (formed,) = member.entered()
    assert isinstance(formed, RoundFormed)
    assert (formed.place.node_rank, formed.place.first_rank, formed.place.world_size) == (1, 2, 4)
    return member


def report(outcome: ReportOutcome, **changes: Any) -> Report:
    return Report(round=0, outcome=outcome, **changes)


def test_a_node_says_inside_before_its_workers_start() -> None:
    member = entering()
    assert (member.row.state, member.status, member.takes_part) == ("inside", "entering", False)
    member.entered()
    assert member.takes_part
    assert member.entered() == ()


def test_a_round_that_closes_before_it_is_entered_is_none_of_ours() -> None:
    member = entering()
    (standing,) = member.take_header(CLOSING, 8)
    assert isinstance(standing, StandingBy)
    assert (member.row.state, member.row.token, member.entered()) == ("waiting", "", ())


def test_growth_is_held_while_workers_run() -> None:
    member = entering()
    member.hold_growth(True)
    assert not member.row.holds
    member.entered()
    before = member.row
    member.hold_growth(True)
    assert (member.row.holds, member.row.sequence) == (True, before.sequence + 1)
    member.hold_growth(True)
    assert member.row.sequence == before.sequence + 1
    member.hold_growth(False)
    assert not member.row.holds
    member.hold_growth(True)
    member.take_header(NEXT, 8)
    member.report(report("stopped"))
    assert (member.row.state, member.row.holds) == ("waiting", False)


def test_who_was_missed_says_more_when_it_can_read_again() -> None:
    member = waiting()
    row = member.row
    member.take_header(replace(CLOSING, missed=("b",)), 9)
    assert not member.wants_place
    member.take_header(replace(CLOSING, missed=("a",)), 9)
    assert member.wants_place
    assert member.row == row
    member.take_place("t", None)
    assert member.row == replace(row, sequence=row.sequence + 1)
    assert not member.wants_place


def test_a_node_that_waits_says_when_the_store_is_away_and_when_it_is_back() -> None:
    member = waiting()
    member.take_header(OPEN, 7)
    member.take_place("t", PlaceRow(round=0, token="t", why="it is full"))
    (away,) = member.take_silence(True)
    assert isinstance(away, StandingBy)
    assert "the store, which does not answer; this node ends after 600 s" in away.reason
    assert member.take_silence(True) == ()
    (back,) = member.take_silence(False)
    assert isinstance(back, StandingBy)
    assert "maximum" in back.reason
    assert inside().take_silence(True) == ()


def test_a_node_tells_of_the_last_round_that_it_knows_though_it_had_no_place_there() -> None:
    member = inside()
    assert member.past == member.row
    member.take_header(NEXT, 9)
    told = member.past
    assert (told.round, told.token, told.round_size, told.node_rank) == (1, "u", 2, -1)
    assert told.sequence == member.row.sequence


def test_a_report_is_passed_on_whole() -> None:
    member = inside()
    facts = {"code": 3, "signo": 6, "startup": "s", "seconds": 1.5, "cause": "boom"}
    member.report(report("failed", follows=True, **facts))
    row = member.row
    assert (row.state, row.outcome, row.follows) == ("reported", "failed", True)
    assert {name: getattr(row, name) for name in facts} == facts
    assert member.report(report("failed")) == ()  # once


def test_a_closing_round_is_told_once_and_left_for_the_next() -> None:
    member = inside()
    (closing,) = member.take_header(CLOSING, 8)
    assert isinstance(closing, RoundClosing)
    assert member.take_header(CLOSING, 9) == ()
    member.report(report("stopped"))
    assert (member.status, member.row.state) == ("reported", "reported")
    member.take_header(NEXT, 10)
    assert member.wants_place
    member.take_place("u", PlaceRow(round=1, token="u", node_rank=0))
    assert (member.row.round, member.row.state, member.row.outcome) == (1, "inside", "")


def test_a_round_that_was_replaced_is_stopped_and_the_node_waits_again() -> None:
    member = inside()
    (closing,) = member.take_header(NEXT, 8)
    assert "without this node" in closing.reason
    member.report(report("stopped"))
    assert member.row.state == "waiting"


def test_a_node_whose_grant_ran_out_stops_and_comes_back() -> None:
    member = inside()
    (closing,) = member.grant_over(9.0)
    assert "9.0 s" in closing.reason
    assert member.grant_over(9.0) == ()
    member.report(report("stopped"))
    assert (member.row.state, member.dropped) == ("waiting", True)


def test_a_node_that_dropped_out_tells_of_which_round_it_runs_nothing() -> None:
    member = inside()
    before = member.row
    member.grant_over(9.0)
    member.report(report("stopped"))
    assert (member.row.token, member.row.node_rank) == (before.token, before.node_rank)
    assert not member.wants_place
    assert member.take_header(NEXT, 8) == ()
    assert member.wants_place


def test_workers_that_were_stopped_unasked_give_the_place_up() -> None:
    member = inside()  # the keeper's timer stopped them
    member.report(report("stopped"))
    assert (member.status, member.row.state) == ("waiting", "waiting")


@pytest.mark.parametrize(
    ("outcome", "leaving", "code"),
    [("noticed", "preempted", exit_codes.PREEMPTED), ("lost", "lost", exit_codes.LOST)],
)
def test_a_node_that_cannot_go_on_leaves(outcome: ReportOutcome, leaving: str, code: int) -> None:
    member = inside()
    member.report(report(outcome))
    assert (member.row.state, member.row.leaving, member.row.leaving_code) == (
        "left",
        leaving,
        code,
    )
    (over,) = member.left()
    assert (over.verdict.outcome, over.verdict.code) == (leaving, code)


def test_a_node_that_is_to_go_says_so_and_reports_first() -> None:
    member = inside()
    assert member.leave("preempted", 75, "SIGTERM") == ()
    assert (member.row.state, member.row.leaving, member.left()) == ("inside", "preempted", ())
    member.report(report("stopped"))
    assert member.row.state == "left"


def test_a_drained_node_leaves() -> None:
    member = waiting()
    member.take_header(replace(OPEN, drained=("a",)), 7)
    assert (member.row.state, member.row.leaving) == ("left", "preempted")
    assert not member.wants_place


def test_a_verdict_ends_it() -> None:
    (over,) = waiting().take_verdict(VerdictRow(outcome="failed", code=3, reason="x"))
    assert over.verdict.code == 3


KEPT = replace(NEXT, kept=True)


def parked() -> Member:
    """Its workers have left a round that is mending."""
    member = inside()
    member.take_header(replace(OPEN, mending=True, reason="node b was lost"), 8)
    member.mend(0, "parked", 1.0, False)
    return member


def test_a_node_whose_workers_stay_enters_the_next_round_with_them() -> None:
    member = parked()
    assert member.take_header(KEPT, 9) == ()
    assert member.wants_place
    place = PlaceRow(round=1, token="u", node_rank=0, first_rank=0, stays=True)
    assert member.take_place("u", place) == ()
    assert member.is_entering
    assert member.takes_part
    assert (member.row.state, member.row.token, member.row.standing) == ("inside", "u", "")
    (mended,) = member.entered()
    assert isinstance(mended, RoundMended)
    assert (mended.place.round, mended.place.node_rank, mended.place.kept) == (1, 0, True)
    assert (member.status, member.row.lasting) == ("inside", "any")


@pytest.mark.parametrize(
    "place", [None, PlaceRow(round=1, token="u"), PlaceRow(round=1, token="u", node_rank=0)]
)
def test_a_node_whose_workers_have_no_place_stops_them(place: PlaceRow | None) -> None:
    member = parked()
    member.take_header(KEPT, 9)
    (closing,) = member.take_place("u", place)
    assert isinstance(closing, RoundClosing)
    member.report(report("stopped"))
    assert member.row.state == "waiting"
    assert member.wants_place


def test_workers_that_have_not_left_a_round_have_no_place_in_the_next() -> None:
    member = inside()
    (closing,) = member.take_header(KEPT, 9)
    assert isinstance(closing, RoundClosing)


def test_a_grant_that_runs_out_while_a_node_moves_stops_its_workers() -> None:
    member = parked()
    member.take_header(KEPT, 9)
    member.take_place("u", PlaceRow(round=1, token="u", node_rank=0, first_rank=0, stays=True))
    (closing,) = member.grant_over(9.0)
    assert isinstance(closing, RoundClosing)
    assert member.entered() == ()
    member.report(replace(report("stopped"), round=0))
    assert member.row.state == "waiting"


def test_workers_that_begin_among_others_can_go_on_among_others() -> None:
    member = waiting()
    member.take_header(KEPT, 7)
    member.take_place("u", PlaceRow(round=1, token="u", node_rank=1, first_rank=2))
    (formed,) = member.entered()
    assert isinstance(formed, RoundFormed)
    assert formed.place.kept
    assert member.row.lasting
    member.note_lasting("")
    assert not member.row.lasting
