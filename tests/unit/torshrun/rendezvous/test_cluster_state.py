"""What the leader knows of its nodes, and whose beats it grants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.rows import Header, NodeRow, SizeWanted
from torshrun.rendezvous.selection import seat
from torshrun.rendezvous.settings import Settings

TTL = 10.0
RULES = Settings(run_id="r", min_nodes=1, max_nodes=9, ttl=TTL)
HEADER = Header(number=0, phase="open", token="t", fence=7, size=3, min_nodes=2, max_nodes=3)


def row(name: str, state: str = "waiting", token: str = "", **changes: Any) -> NodeRow:
    facts: dict[str, Any] = {"node": name, "sequence": 1, "state": state, "token": token}
    return NodeRow(**(facts | changes))


def view(*rows: NodeRow, header: Header | None = HEADER) -> ClusterState:
    seen = ClusterState(RULES, "a", 0.0)
    for revision, one in enumerate(rows):
        seen.put(one, revision)
    seen.take_header(header, 0.0)
    return seen


def beat(name: str, number: int = 1, confirmed: int = 0, token: str = "t") -> Heartbeat:
    return Heartbeat(name, 0, token, number, confirmed)


def test_the_limits_are_what_is_wanted_then_the_rounds_then_the_jobs() -> None:
    seen = view()
    assert seen.limits == (2, 3)
    seen.wishes.size = SizeWanted(min_nodes=4, max_nodes=5)
    assert seen.limits == (4, 5)
    assert view(header=None).limits == (1, 9)


def test_a_node_that_left_or_goes_or_runs_workers_has_no_place_in_the_next_round() -> None:
    rows = [row("a"), row("b", "left"), row("c", "inside"), row("d", leaving="lost"), row("e")]
    seen = view(*rows, header=None)
    seen.drain("e", wanted=True)
    assert [name for name in "abcdef" if seen.stays(name)] == ["a"]
    assert seen.roster.newcomers == {"a"}
    seen.drain("e", wanted=False)
    assert seen.roster.newcomers == {"a", "e"}


def test_each_round_begins_with_nothing_but_what_the_rows_tell_of_it() -> None:
    seen = view(row("a", "inside", "t"), row("b", "waiting", "u", outcome="failed"))
    seen.sight = replace(seen.sight, blind_until=99.0, inherited_until=99.0)
    assert seen.answer_beat(beat("a"), 1.0, 9.0)
    seen.take_header(replace(HEADER, number=1, token="u"), 5.0)
    sight = seen.sight
    assert (sight.blind_until, sight.inherited_until, sight.opened_at) == (5.0, 5.0, 5.0)
    assert (seen.heard.granted, seen.roster.dropped, seen.roster.strays) == ({}, {"b"}, {"a"})


def test_the_same_round_goes_on_when_its_header_is_written_again_or_was_gone() -> None:
    seen = view(row("a", "inside", "t"))
    seen.sight = replace(seen.sight, inherited_until=99.0)
    seen.take_header(replace(HEADER, fence=8), 5.0)
    seen.take_header(None, 6.0)
    assert not seen.roster.inside
    assert seen.roster.strays == {"a"}
    seen.take_header(HEADER, 7.0)
    assert (seen.sight.inherited_until, seen.sight.opened_at) == (99.0, 0.0)
    assert seen.roster.inside == {"a"}


def test_nodes_without_a_row_are_apart_until_they_are_heard_of_again() -> None:
    seen = ClusterState(RULES, "a", 0.0)
    for name in "abc":
        seen.put(row(name), 1)
    seen.sight = seen.sight.with_places("t", ("a", "b", "c"))
    seen.take_header(HEADER, 0.0)
    assert seen.roster.placed == {"a", "b", "c"}
    seen.drop("c")
    assert (seen.roster.placed, seen.roster.apart) == ({"a", "b"}, {"c"})
    seen.put(row("c", "inside", "t", sequence=2), 2)
    assert (seen.roster.inside, seen.roster.unaccounted) == ({"c"}, 0)
    assert seen.accounts_for("b")
    assert not seen.accounts_for("x")


def test_a_node_that_has_reported_can_run_nothing_though_it_vanishes() -> None:
    seen = view(row("a", "inside", "t"), row("b", "inside", "t"), row("c", "reported", "t"))
    seen.sight = replace(seen.sight, inherited_until=99.0)
    for name in "bc":
        seen.drop(name)
    assert seen.roster.apart == {"b", "c"}
    assert (seen.fenced_at("b"), seen.fenced_at("c")) == (99.0, -math.inf)


@pytest.mark.parametrize("row_is_gone", [False, True])
def test_who_has_left_is_known_to_be_going_also_without_its_row(row_is_gone: bool) -> None:
    seen = view(row("b", "left", "t", leaving="preempted"), row("c", "inside", "t", leaving="lost"))
    if row_is_gone:
        seen.drop("b")
        seen.drop("c")
    assert seen.roster.going == ({"b"} if row_is_gone else {"b", "c"})
    assert seen.roster.reports.keys() == {"b"}


def test_who_has_succeeded_may_go() -> None:
    seen = view(row("b", "left", "t", outcome="succeeded", leaving="preempted"))
    assert (seen.roster.going, seen.roster.succeeded) == (set(), {"b"})
    seen.put(row("c", "reported", "t", outcome="succeeded"), 2)
    seen.drop("c")
    assert seen.roster.succeeded == {"b", "c"}


def test_only_beats_of_the_open_round_are_granted() -> None:
    seen = view(row("a", "inside", "t"), row("b", "inside", "t"))
    assert not seen.answer_beat(beat("b"), 2.0, 2.0)  # the leader's own grant is over
    assert not seen.answer_beat(beat("b", token="old"), 2.0, 9.0)
    assert seen.answer_beat(Heartbeat("s", -1, "", 1, 0), 2.0, 9.0)
    assert seen.heard.granted == {}
    assert seen.answer_beat(beat("b"), 2.0, 9.0)
    assert (seen.heard.granted, seen.sight.blind_until) == ({"b": 2.0}, 0.0)
    assert seen.answer_beat(beat("x"), 3.0, 9.0)  # nothing else is known of it
    assert seen.sight.blind_until == 3.0 + TTL


def test_a_beat_counts_from_when_its_node_knows_that_it_was_answered() -> None:
    seen = view(row("a", "inside", "t"), row("b", "inside", "t"))
    assert seen.heard_all_since(1.0) == -math.inf
    for number, confirmed, heard in ((1, 0, 1.0), (2, 0, 1.0), (3, 2, 2.0), (4, 1, 2.0)):
        assert seen.answer_beat(beat("b", number, confirmed), float(number), 99.0)
        assert seen.heard_all_since(number + 0.9) == heard


def test_who_is_to_enter_the_round_is_to_beat_too() -> None:
    seen = ClusterState(RULES, "a", 0.0)
    seen.sight = seen.sight.with_places("t", ("a", "b"))
    seen.put(row("b"), 1)
    seen.take_header(HEADER, 0.0)
    assert seen.heard_all_since(1.0) == -math.inf
    seen.answer_beat(beat("b"), 1.0, 9.0)
    assert seen.heard_all_since(1.5) == 1.0


def test_a_node_whose_beats_do_not_arrive_has_no_place() -> None:
    seen = ClusterState(RULES, "a", 0.0)
    for revision, name in enumerate("ab"):
        seen.put(NodeRow(node=name, host=name, sequence=1, state="waiting"), revision)
    assert [row.node for row in seat(seen, 1.0).nodes] == ["a"]
    assert dict(seat(seen, 1.0).waiting)["b"] == "its beats do not reach the leader"
    seen.answer_beat(Heartbeat("b", -1, "", 1, 0), 1.0, math.inf)
    assert [row.node for row in seat(seen, 1.0).nodes] == ["a", "b"]
