"""Until when workers may run, and until when a new leader has to expect them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from torshrun.rendezvous.beats import Beat
from torshrun.rendezvous.grant import Hearing, Term, inherited_until, leader_until
from torshrun.rendezvous.rows import Header, NodeRow
from torshrun.rendezvous.settings import GRANT, Settings
from torshrun.rendezvous.view import View

TTL, OUTAGE = 10.0, 100.0
RULES = Settings(run_id="r", min_nodes=1, max_nodes=3, ttl=TTL, outage_timeout=OUTAGE)
HEADER = Header(
    number=0, phase="open", token="t", fence=5, leader="old", leader_inside=True, size=3
)
NOW = 50.0


def row(name: str, **changes: Any) -> NodeRow:
    facts: dict[str, Any] = {"sequence": 1, "state": "inside", "round": 0, "token": "t"}
    return NodeRow(node=name, **(facts | changes))


def view(*rows: NodeRow, node: str = "a", header: Header | None = HEADER) -> View:
    seen = View(RULES, node, 0.0)
    seen.take_header(header, 0.0)
    for one in rows:
        seen.put(one, 1)
    return seen


def inherited(seen: View, hearing: Hearing, last: Term | None = None) -> tuple[float, float]:
    return inherited_until(seen, hearing, last, RULES, NOW)


def heard(*leaders: str) -> Hearing:
    hearing = Hearing()
    hearing.asked.update(leaders)
    return hearing


def test_nothing_is_inherited_without_a_round_or_from_a_term_of_its_own() -> None:
    assert inherited(view(header=None), Hearing()) == (NOW, NOW)
    hearing = heard("old")
    hearing.led.add(5)
    assert inherited(view(row("a"), row("b")), hearing) == (NOW, NOW + TTL)


def test_a_leader_that_answered_went_on_for_a_ttl_at_most() -> None:
    hearing = heard("old")
    hearing.note(5, 1, NOW - 3)
    assert inherited(view(row("a"), row("b")), hearing) == (NOW - 3 + TTL, NOW - 3 + 2 * TTL)


def test_without_this_node_of_its_round_no_leader_went_on_for_longer_than_a_ttl() -> None:
    seen = view(row("a"), row("b"))
    assert inherited(seen, heard("old")) == (NOW + TTL, NOW + 2 * TTL)
    hearing = heard("old")
    hearing.note(5, 1, NOW - 20 * TTL)
    assert inherited(seen, hearing) == (NOW + TTL, NOW + 2 * TTL)


def test_a_leader_of_its_round_that_it_never_asked_ended_with_its_lease() -> None:
    assert inherited(view(row("a"), row("b")), Hearing()) == (NOW, NOW + TTL)
    assert inherited(view(row("a")), Hearing()) == (NOW + TTL, NOW + TTL)  # and another node's lost


@pytest.mark.parametrize(
    "own", [row("a", state="waiting", token=""), row("a", state="reported", outcome="stopped")]
)
def test_a_node_outside_the_round_was_not_needed(own: NodeRow) -> None:
    hearing = heard("old")
    assert inherited(view(own), hearing)[0] > NOW + OUTAGE
    hearing.note(5, 1, NOW - 8 * TTL)  # long ago: it may have been forgotten
    assert inherited(view(own), hearing)[0] > NOW + OUTAGE


def test_another_leader_between_ended_with_its_lease() -> None:
    seen, last = view(row("a"), row("b")), Term(8, "between")
    hearing = heard("between")
    hearing.note(8, 1, NOW)
    assert inherited(seen, hearing, last) == (NOW + TTL, NOW + TTL)  # it granted until then


def test_a_node_that_dropped_out_of_the_round_was_needed_like_one_inside() -> None:
    seen = view(row("a", state="waiting"), row("b"))
    assert inherited(seen, heard("old")) == (NOW + TTL, NOW + 2 * TTL)


def test_a_leader_that_has_left_has_ended() -> None:
    gone = row("old", state="left", leaving="preempted")
    assert inherited(view(row("a"), gone), heard("old")) == (NOW + TTL, NOW + TTL)
    outside = row("between", state="left", token="")
    seen = view(row("a"), gone, outside)
    assert inherited(seen, heard("old"), Term(8, "between")) == (NOW + TTL, NOW + TTL)


def test_only_four_answers_are_kept() -> None:
    hearing = Hearing()
    for fence in range(6):
        hearing.note(fence, 1, NOW)
    assert hearing.end_of(5, NOW, TTL) == NOW + TTL
    assert hearing.end_of(1, NOW, TTL) == math.inf


def test_a_grant_is_for_one_round() -> None:
    hearing = Hearing()
    hearing.grant("t", 9.0)
    hearing.grant("t", 8.0)
    assert (hearing.until("t"), hearing.until("u")) == (9.0, -math.inf)
    hearing.grant("u", 3.0)
    assert (hearing.until("t"), hearing.until("u")) == (-math.inf, 3.0)


def leading(*rows: NodeRow, fence: int = 5) -> View:
    """As the header's author sees it, or the leader of another term."""
    seen = view(*rows)
    seen.fence = fence
    return seen


def test_a_leader_goes_on_past_its_lease_while_it_hears_all_of_its_round() -> None:
    seen = leading(row("a"), row("b"))
    expired = NOW - 1
    assert leader_until(seen, RULES, expired, NOW) == expired  # b never beat
    beat = Beat(node="b", round=0, token="t", number=1, confirmed=0)
    assert seen.answer_beat(beat, NOW, NOW + 1)
    assert leader_until(seen, RULES, expired, NOW + 1) == NOW + GRANT * TTL
    seen.put(row("c"), 2)  # never beat, either
    assert leader_until(seen, RULES, expired, NOW + 1) == expired
    seen.drop("b")
    seen.drop("c")
    assert leader_until(seen, RULES, expired, NOW + 1) == expired  # they may come back
    assert leader_until(seen, RULES, NOW + TTL, NOW) == NOW + TTL


def test_a_leader_without_the_store_ends_in_time() -> None:
    seen, contact = leading(row("a")), NOW - OUTAGE
    assert leader_until(seen, RULES, contact + GRANT * TTL, NOW) == NOW


def test_a_leader_ends_with_its_lease_in_a_round_that_is_not_its_own() -> None:
    beat = Beat(node="b", round=0, token="t", number=1, confirmed=0)
    for fence, goes_on in ((5, True), (6, False)):
        seen = leading(row("a"), row("b"), fence=fence)
        assert seen.answer_beat(beat, NOW, NOW + 1)
        assert (leader_until(seen, RULES, NOW, NOW + 1) > NOW) is goes_on


def test_a_leader_without_a_node_that_dropped_out_ends_with_its_lease() -> None:
    seen = leading(row("a"), row("b"))
    assert seen.answer_beat(Beat(node="b", round=0, token="t", number=1, confirmed=0), NOW, NOW + 1)
    seen.put(row("c", state="waiting"), 2)
    assert leader_until(seen, RULES, NOW, NOW + 1) == NOW


def test_a_node_that_is_granted_its_beats_is_waited_for_whoever_has_its_row() -> None:
    seen = leading(row("a"), fence=6)
    seen.blind_until = NOW
    assert seen.answer_beat(Beat(node="b", round=0, token="t", number=1, confirmed=0), NOW, NOW + 1)
    assert seen.blind_until == NOW + TTL


@pytest.mark.parametrize("state", ["inside", "waiting"])
def test_who_beats_to_a_new_leader_beats_no_more_to_the_last_one(state: str) -> None:
    seen = leading(row("b", state=state), fence=6)
    seen.blind_until, seen.inherited_until = inherited(seen, Hearing())
    assert seen.blind_until > NOW + OUTAGE
    outside = Beat(node="spare", round=-1, token="", number=1, confirmed=0)
    assert seen.answer_beat(outside, NOW, NOW + 1)
    assert seen.blind_until > NOW + OUTAGE
    assert seen.answer_beat(Beat(node="b", round=-1, token="", number=1, confirmed=0), NOW, NOW + 1)
    assert (seen.blind_until, seen.inherited_until) == (NOW + 2 * TTL, NOW + 2 * TTL)
