"""What the leader decides while workers keep their processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.led_nodes import TTL, act, close, decide, header, inside, node, settings, view

from torshrun.rendezvous import mending
from torshrun.rendezvous.actions import Close, Conclude, Decision, Form, Mend, Mended
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.mending import JOIN_WITHIN
from torshrun.rendezvous.rows import Header, NodeRow, SizeWanted

RULES = settings(least=1)
LOST = 2 * TTL
"""When a node that beats no more has long run out of its grant."""


def lasting(name: str, rank: int, **changes: Any) -> NodeRow:
    return inside(name, rank, **({"lasting": "any"} | changes))


def parked(name: str, rank: int, **changes: Any) -> NodeRow:
    return lasting(name, rank, **({"standing": "parked", "sequence": 2, "seconds": 1.0} | changes))


def opened(size: int = 3, **changes: Any) -> Header:
    return header(size, **({"min_nodes": 1, "max_restarts": 2} | changes))


def three(**third: Any) -> ClusterState:
    rows = lasting("a", 0), lasting("b", 1), lasting("c", 2, **third)
    return view(*rows, header=opened(), rules=RULES)


def without_c() -> ClusterState:
    """The round is over as node c was lost, and nobody has left it yet."""
    seen = three()
    seen.drop("c")
    assert act(seen, LOST) == Mend("node c was lost")
    seen.take_header(opened(mending=True, reason="node c was lost"), LOST)
    return seen


def test_when_a_node_is_lost_the_others_leave_the_round_and_form_the_next() -> None:
    seen = without_c()
    assert decide(seen, LOST).action is None
    seen.put(parked("a", 0), 9)
    told = decide(seen, LOST)
    assert (told.action, told.why) == (None, "for the workers of node b to leave round 0")
    seen.put(parked("b", 1), 10)
    formed = act(seen, LOST)
    assert isinstance(formed, Form)
    assert (formed.number, formed.staying) == (1, {"a", "b"})
    assert [row.node for row in formed.seating.nodes] == ["a", "b"]
    assert formed.history.restarts == 0


def test_no_round_follows_as_long_as_a_lost_node_may_run_workers() -> None:
    seen = three()
    assert seen.answer_beat(Heartbeat("c", 0, "t", 1, 0), 5.0, 99.0)
    seen.drop("c")
    seen.take_header(opened(mending=True), 6.0)
    seen.put(parked("a", 0), 9)
    seen.put(parked("b", 1), 10)
    assert decide(seen, 6.0).action is None
    assert isinstance(act(seen, 5.0 + TTL), Form)


def test_a_node_that_waits_takes_the_place_of_one_that_was_lost() -> None:
    seen = without_c()
    seen.put(node("d"), 8)
    seen.put(parked("a", 0), 9)
    seen.put(parked("b", 1), 10)
    formed = act(seen, LOST)
    assert [row.node for row in formed.seating.nodes] == ["a", "b", "d"]
    assert formed.staying == {"a", "b"}


def test_if_rank_0_is_lost_a_node_that_stays_has_it() -> None:
    seen = three()
    seen.drop("a")
    seen.take_header(opened(mending=True), LOST)
    for rank, name in ((1, "b"), (2, "c")):
        seen.put(parked(name, rank), 9 + rank)
    seen.put(node("d"), 20)
    assert [row.node for row in act(seen, LOST).seating.nodes] == ["c", "b", "d"]


def test_workers_that_have_left_wait_for_the_least_number_of_nodes() -> None:
    seen = without_c()
    seen.wishes.size = SizeWanted(min_nodes=3, max_nodes=3)
    seen.put(parked("a", 0), 9)
    seen.put(parked("b", 1), 10)
    waits = decide(seen, LOST)
    assert waits.action is None
    assert "at least 3 node(s) (2 here)" in waits.why
    assert isinstance(act(seen, LOST + RULES.join_timeout), Conclude)


def test_all_workers_start_again_if_those_of_a_node_cannot_go_on() -> None:
    unable = three()
    unable.put(lasting("b", 1, lasting="", sequence=2), 9)
    unable.drop("c")
    assert act(unable, LOST) == Close("node c was lost")
    seen = without_c()
    seen.put(parked("b", 1, standing="unable"), 9)
    assert act(seen, LOST) == Close("node c was lost")
    bare = without_c()
    bare.put(parked("a", 0, standing="bare"), 9)
    bare.put(parked("b", 1, standing="bare"), 10)
    assert isinstance(act(bare, LOST), Close)


def of_as_many(least: int, *others: str) -> ClusterState:
    """Node a is lost, and the workers of the others can only go on among as many ranks."""
    rows = [lasting(name, rank, lasting="same") for rank, name in enumerate("abc")]
    seen = view(*rows, header=opened(world_size=3, min_nodes=least), rules=RULES)
    seen.drop("a")
    for revision, name in enumerate(others):
        seen.put(node(name), 20 + revision)
    return seen


def all_parked(seen: ClusterState) -> ClusterState:
    seen.take_header(replace(seen.header or opened(), mending=True, reason="a was lost"), LOST)
    for rank, name in ((1, "b"), (2, "c")):
        seen.put(parked(name, rank, lasting="same"), 30 + rank)
    return seen


def test_a_spare_has_the_very_ranks_of_a_lost_node_if_each_has_a_part_of_the_state() -> None:
    seen = of_as_many(1, "d")
    assert act(seen, LOST) == Mend("node a was lost")
    formed = act(all_parked(seen), LOST)
    assert [row.node for row in formed.seating.nodes] == ["d", "b", "c"]
    assert formed.staying == {"b", "c"}


def test_without_a_spare_workers_that_need_as_many_wait_or_start_again() -> None:
    assert act(of_as_many(1), LOST) == Close("node a was lost")
    seen = of_as_many(3)
    assert act(seen, LOST) == Mend("node a was lost")
    assert "at least 3 node(s) (2 here)" in decide(all_parked(seen), LOST).why
    seen.put(node("d", nproc=2), 40)
    assert act(seen, LOST) == Close("a was lost")
    grows = view(lasting("a", 0, lasting="same"), node("d"), header=opened(1), rules=RULES)
    assert act(grows, 0.0) is None
    assert act(grows, 9.0) == Close("node d joined")


def test_workers_that_are_lost_as_well_cost_one_restart() -> None:
    seen = without_c()
    seen.put(parked("a", 0, lost=True), 9)
    seen.put(parked("b", 1), 10)
    assert act(seen, LOST).history.restarts == 1
    spent = without_c()
    spent.take_header(opened(mending=True, restarts=2), LOST)
    spent.put(parked("a", 0, lost=True), 9)
    assert isinstance(act(spent, LOST), Close)


def test_a_node_that_goes_has_the_others_go_on() -> None:
    seen = three()
    seen.put(lasting("c", 2, leaving="preempted", leaving_code=75, sequence=2), 9)
    reason = "node c leaves: preempted"
    assert act(seen) == Mend(reason)
    seen.take_header(opened(mending=True, reason=reason), 0.0)
    seen.put(parked("a", 0), 9)
    seen.put(parked("b", 1), 10)
    assert decide(seen, 0.0).action is None, "its workers are being stopped"
    seen.put(lasting("c", 2, state="left", outcome="stopped", leaving="preempted", sequence=3), 11)
    assert act(seen).staying == {"a", "b"}


def test_newcomers_are_let_in_while_the_others_keep_their_processes() -> None:
    seen = view(lasting("a", 0), lasting("b", 1), node("c"), header=opened(2), rules=RULES)
    assert act(seen) == Mend("node c joined", at_commit=True)
    seen.take_header(opened(2, mending=True, at_commit=True), 0.0)
    seen.put(parked("a", 0), 9)
    seen.put(parked("b", 1), 10)
    formed = act(seen)
    assert [row.node for row in formed.seating.nodes] == ["a", "b", "c"]
    gone = replace(seen.sight)
    seen.drop("c")
    seen.sight = gone
    assert isinstance(act(seen), Mended)
    assert act(seen).history.restarts == 0


def drained() -> ClusterState:
    """The round is to end at a commit, as node c was asked to go."""
    seen = three()
    seen.drain("c", True)
    seen.take_header(opened(drained=("c",)), 0.0)
    seen.put(lasting("c", 2, leaving="preempted", leaving_code=75, sequence=2), 9)
    reason = "node c was drained"
    assert act(seen) == Mend(reason, at_commit=True)
    mended = opened(drained=("c",), mending=True, at_commit=True, reason=reason)
    seen.take_header(mended, 0.0)
    return seen


def test_newcomers_wait_for_workers_that_have_not_joined_yet() -> None:
    rows = lasting("a", 0), lasting("b", 1, lasting=""), node("c")
    seen = view(*rows, header=opened(2), rules=RULES)
    why = "for the workers of node b to call join(), to let nodes in"
    assert decide(seen, 0.0) == Decision(None, JOIN_WITHIN, why)
    assert act(seen, JOIN_WITHIN) == Close("node c joined")
    seen.put(lasting("b", 1, sequence=2), 9)
    assert act(seen) == Mend("node c joined", at_commit=True)
    for rank, name in enumerate("ab"):
        seen.put(lasting(name, rank, lasting="", sequence=3), 10 + rank)
    assert act(seen) == Close("node c joined")


def test_a_node_that_is_drained_goes_at_a_commit() -> None:
    seen = drained()
    assert decide(seen, 1.0).wake == mending.COMMIT_WITHIN
    for rank, name in enumerate("abc"):
        told = {"leaving": "preempted", "leaving_code": 75} if name == "c" else {}
        seen.put(parked(name, rank, sequence=3, **told), 10 + rank)
    assert act(seen, 1.0).staying == {"a", "b"}


def test_when_no_commit_comes_in_time_the_workers_leave_at_once() -> None:
    seen = drained()
    assert act(seen, mending.COMMIT_WITHIN) == Mend("node c was drained")


def test_when_workers_are_lost_no_commit_is_waited_for() -> None:
    seen = drained()
    seen.put(lasting("b", 1, standing="lost", lost=True, sequence=2), 10)
    assert act(seen, 1.0) == Mend("node b has lost workers")


def test_when_a_node_is_lost_no_commit_is_waited_for() -> None:
    seen = drained()
    seen.drop("b")
    assert isinstance(hurried := act(seen, LOST), Mend)
    assert not hurried.at_commit


def test_a_node_that_is_drained_and_stops_its_workers_ends_the_wait_for_a_commit() -> None:
    seen = drained()
    ended = {"outcome": "stopped", "leaving": "preempted", "leaving_code": 75}
    seen.put(lasting("c", 2, state="left", sequence=3, **ended), 10)
    assert act(seen, 1.0) == Mend("node c was drained")


def test_a_job_that_is_scaled_down_shrinks_at_a_commit() -> None:
    seen = three()
    seen.wishes.size = SizeWanted(min_nodes=1, max_nodes=2)
    assert act(seen) == Mend("the job was scaled to 2 nodes", at_commit=True)


@pytest.mark.parametrize("leads", ["this leader", "another"])
def test_no_round_follows_while_workers_run_that_were_to_move_to_the_last_one(leads: str) -> None:
    moves = lasting("b", 1, standing="parked")
    seen = view(moves, header=opened(2), rules=RULES)
    if leads == "this leader":
        seen.sight = seen.sight.with_places("u", ["a", "b"])
    kept = opened(2, token="u", number=1, kept=True)
    seen.take_header(kept, 1.0)
    ended = {"state": "reported", "outcome": "stopped"}
    seen.put(inside("a", 0, round=1, token="u", sequence=3, **ended), 9)
    close(seen, replace(kept, phase="closing"), 2.0)
    told = decide(seen, LOST)
    assert (told.action, told.why) == (None, "for node b to stop the workers there")
    seen.put(node("b", round=0, token="t", sequence=4), 10)
    assert isinstance(act(seen, 2 * LOST), Form)
