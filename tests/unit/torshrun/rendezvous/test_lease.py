"""Until when workers may run, and until when a new leader has to expect them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.lease import inherited_until, leader_until
from torshrun.rendezvous.rows import Header, NodeRow
from torshrun.rendezvous.settings import GRANT, Settings

TTL, OUTAGE = 10.0, 100.0
RULES = Settings(run_id="r", min_nodes=1, max_nodes=3, ttl=TTL, outage_timeout=OUTAGE)
HEADER = Header(
    number=0, phase="open", token="t", fence=5, leader="old", leader_inside=True, size=3
)
NOW = 50.0


def row(name: str, **changes: Any) -> NodeRow:
    facts: dict[str, Any] = {"sequence": 1, "state": "inside", "round": 0, "token": "t"}
    return NodeRow(node=name, **(facts | changes))


def view(*rows: NodeRow, node: str = "a", header: Header | None = HEADER) -> ClusterState:
    seen = ClusterState(RULES, node, 0.0)
    seen.take_header(header, 0.0)
    for one in rows:
        seen.put(one, 1)
    return seen


def inherited(seen: ClusterState, answers: dict[int, float], last: int = 0) -> tuple[float, float]:
    return inherited_until(seen, answers, last, NOW)


def test_nothing_is_inherited_without_a_round_or_from_a_term_of_its_own() -> None:
    assert inherited(view(header=None), {}) == (NOW, NOW)
    own = view(row("a"), row("b"), node="old")
    assert inherited(own, {}) == (NOW, NOW + TTL)


def test_a_leader_that_answered_went_on_for_a_ttl_at_most() -> None:
    assert inherited(view(row("a"), row("b")), {5: NOW - 3}) == (NOW - 3 + TTL, NOW - 3 + 2 * TTL)


def test_without_this_node_of_its_round_no_leader_went_on_for_longer_than_a_ttl() -> None:
    seen = view(row("a"), row("b"))
    assert inherited(seen, {}) == (NOW + TTL, NOW + 2 * TTL)
    assert inherited(seen, {5: NOW - 20 * TTL}) == (NOW + TTL, NOW + 2 * TTL)
    another_lost = view(row("a"))
    assert inherited(another_lost, {}) == (NOW + 2 * TTL, NOW + 2 * TTL)


@pytest.mark.parametrize(
    "own", [row("a", state="waiting", token=""), row("a", state="reported", outcome="stopped")]
)
def test_a_node_outside_the_round_was_not_needed(own: NodeRow) -> None:
    assert inherited(view(own), {})[0] > NOW + OUTAGE
    long_ago = NOW - 8 * TTL  # it may have been forgotten
    assert inherited(view(own), {5: long_ago})[0] > NOW + OUTAGE


def test_the_term_between_granted_for_a_ttl_more() -> None:
    seen = view(row("a"), row("b"))
    assert inherited(seen, {8: NOW}, last=8) == (NOW + 2 * TTL, NOW + 2 * TTL)


def test_a_node_that_dropped_out_of_the_round_was_needed_like_one_inside() -> None:
    seen = view(row("a", state="waiting"), row("b"))
    assert inherited(seen, {}) == (NOW + TTL, NOW + 2 * TTL)


def test_a_leader_that_has_left_has_ended() -> None:
    gone = row("old", state="left", leaving="preempted")
    assert inherited(view(row("a"), gone), {}) == (NOW + TTL, NOW + TTL)
    outside = row("between", state="left", token="")
    seen = view(row("a"), gone, outside)
    assert inherited(seen, {}, last=8) == (NOW + TTL, NOW + TTL)


def leading(*rows: NodeRow, fence: int = 5) -> ClusterState:
    """As the header's author sees it, or the leader of another term."""
    seen = view(*rows)
    seen.term = replace(seen.term, fence=fence)
    return seen


def test_a_leader_goes_on_past_its_lease_while_it_hears_all_of_its_round() -> None:
    seen = leading(row("a"), row("b"))
    expired = NOW - 1
    assert leader_until(seen, expired, NOW) == expired  # b never beat
    beat = Heartbeat(node="b", round=0, token="t", number=1, confirmed=0)
    assert seen.answer_beat(beat, NOW, NOW + 1)
    assert leader_until(seen, expired, NOW + 1) == NOW + GRANT * TTL
    seen.put(row("c"), 2)  # never beat, either
    assert leader_until(seen, expired, NOW + 1) == expired
    seen.drop("b")
    seen.drop("c")
    assert leader_until(seen, expired, NOW + 1) == expired  # they may come back
    assert leader_until(seen, NOW + TTL, NOW) == NOW + TTL


def test_a_leader_without_the_store_ends_in_time() -> None:
    seen, contact = leading(row("a")), NOW - OUTAGE
    assert leader_until(seen, contact + GRANT * TTL, NOW) == NOW


def test_a_leader_ends_with_its_lease_in_a_round_that_is_not_its_own() -> None:
    beat = Heartbeat(node="b", round=0, token="t", number=1, confirmed=0)
    for fence, goes_on in ((5, True), (6, False)):
        seen = leading(row("a"), row("b"), fence=fence)
        assert seen.answer_beat(beat, NOW, NOW + 1)
        assert (leader_until(seen, NOW, NOW + 1) > NOW) is goes_on


def test_a_leader_without_a_node_that_dropped_out_ends_with_its_lease() -> None:
    seen = leading(row("a"), row("b"))
    assert seen.answer_beat(
        Heartbeat(node="b", round=0, token="t", number=1, confirmed=0), NOW, NOW + 1
    )
    seen.put(row("c", state="waiting"), 2)
    assert leader_until(seen, NOW, NOW + 1) == NOW


def test_a_node_that_is_granted_its_beats_is_waited_for_whoever_has_its_row() -> None:
    seen = leading(row("a"), fence=6)
    seen.sight = replace(seen.sight, blind_until=NOW)
    assert seen.answer_beat(
        Heartbeat(node="b", round=0, token="t", number=1, confirmed=0), NOW, NOW + 1
    )
    assert seen.sight.blind_until == NOW + TTL


@pytest.mark.parametrize("state", ["inside", "waiting"])
def test_who_beats_to_a_new_leader_beats_no_more_to_the_last_one(state: str) -> None:
    seen = leading(row("b", state=state), fence=6)
    blind, inherits = inherited(seen, {})
    seen.sight = replace(seen.sight, blind_until=blind, inherited_until=inherits)
    assert seen.sight.blind_until > NOW + OUTAGE
    outside = Heartbeat(node="spare", round=-1, token="", number=1, confirmed=0)
    assert seen.answer_beat(outside, NOW, NOW + 1)
    assert seen.sight.blind_until > NOW + OUTAGE
    assert seen.answer_beat(
        Heartbeat(node="b", round=-1, token="", number=1, confirmed=0), NOW, NOW + 1
    )
    assert (seen.sight.blind_until, seen.sight.inherited_until) == (NOW + 2 * TTL, NOW + 2 * TTL)
