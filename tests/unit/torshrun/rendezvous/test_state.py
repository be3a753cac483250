"""What the leader decides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.led_nodes import (
    TTL,
    act,
    close,
    decide,
    formed,
    header,
    inside,
    node,
    reported,
    settings,
    view,
)

from torshrun import exit_codes
from torshrun.rendezvous.actions import Adopt, Close, Conclude, Form, ListNodes
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.rows import Header, SizeWanted, StopWanted
from torshrun.rendezvous.selection import seat
from torshrun.rendezvous.settings import Settings


def test_the_first_round_waits_for_all_or_for_the_last_call() -> None:
    seen = view(node("a"))
    assert decide(seen, 0)[:2] == (None, 600.0)
    seen.put(node("b"), 9)
    assert decide(seen, 1.0)[:2] == (None, 6.0)
    formed = act(seen, 6.0)
    assert isinstance(formed, Form)
    assert (formed.number, [row.node for row in formed.seating.nodes]) == (0, ["a", "b"])
    seen.put(node("c"), 10)
    assert len(act(seen, 1.0).seating.nodes) == 3


def test_no_round_is_formed_while_a_node_runs_workers_of_one_that_is_gone() -> None:
    seen = view(node("a"), node("b"), inside("c", 2))
    assert decide(seen, 1000.0) == (None, math.inf, "for node c to stop the workers there")
    seen.put(node("c", sequence=2), 9)
    assert isinstance(act(seen, 1001.0), Form)


def test_too_few_nodes_end_the_job_in_time() -> None:
    ended = act(view(node("a")), 600.0)
    assert isinstance(ended, Conclude)
    assert ended.verdict.code == exit_codes.RENDEZVOUS


def test_the_next_round_waits_until_all_were_listed_who_entered_this_one() -> None:
    """What is heard of the nodes may lag behind what is heard of the header."""
    seen = formed("a", "b")
    seen.take_header(header(phase="closing"), 1.0)
    assert act(seen, 1.0) == ListNodes()
    seen.sight = replace(seen.sight, listed_since_close=True)
    assert isinstance(act(seen, 1.0), Form)


def test_a_node_without_a_row_is_lost_once_its_beats_have_run_out() -> None:
    seen = view(inside("a", 0), inside("b", 1), header=header())
    assert seen.answer_beat(Heartbeat("b", 0, "t", 1, 0), 100.0, 200.0)
    seen.drop("b")
    assert decide(seen, 105.0)[:2] == (None, 110.0)
    assert seen.answer_beat(Heartbeat("b", 0, "t", 2, 1), 108.0, 200.0)
    assert decide(seen, 110.0)[:2] == (None, 118.0)
    assert isinstance(act(seen, 118.0), Close)


def test_nodes_of_another_leaders_round_have_time_to_come_back() -> None:
    seen = view(inside("a", 0), header=header(fence=3))
    seen.sight = replace(seen.sight, blind_until=50.0)
    assert decide(seen, 49.0)[:2] == (None, 50.0)
    assert isinstance(act(seen, 50.0), Close)
    seen.put(inside("b", 1), 9)
    assert act(seen, 50.0) == Adopt()


def test_a_node_that_lost_touch_ends_the_round_and_is_waited_for_no_longer() -> None:
    seen = view(inside("a", 0), inside("b", 1), header=header())
    seen.put(inside("b", 1, state="waiting", sequence=2), 9)
    closing = act(seen)
    assert isinstance(closing, Close)
    assert closing.reason == "node b lost touch with it"
    close(seen, header(phase="closing"), 0.0)
    seen.put(reported("a", 0, "failed"), 10)
    formed = act(seen)
    assert isinstance(formed, Form)
    assert formed.history.restarts == 0, "who failed for want of that node spends no budget"
    assert [row.node for row in formed.seating.nodes] == ["a", "b"]


def test_a_round_all_of_whose_nodes_lost_touch_is_followed_at_once() -> None:
    rows = [inside(name, rank, state="waiting") for rank, name in enumerate("ab")]
    seen = view(*rows, header=header(fence=3))  # another leader's
    seen.sight = replace(seen.sight, blind_until=999.0, inherited_until=999.0)
    assert isinstance(act(seen), Close)
    close(seen, header(fence=3, phase="closing"), 0.0)
    assert isinstance(act(seen), Form)


def test_nobody_is_granted_a_round_that_is_closing() -> None:
    seen = view(inside("a", 0), inside("b", 1), header=header())
    assert not seen.answer_beat(
        Heartbeat("b", 0, "t", 1, 0), 1.0, 1.0
    )  # the leader's own grant is over
    seen.take_header(header(phase="closing"), 1.0)
    assert not seen.answer_beat(Heartbeat("b", 0, "t", 2, 0), 1.0, 9.0)


def test_newcomers_are_let_in_at_once_if_they_fill_the_job() -> None:
    seen = view(inside("a", 0), inside("b", 1), node("c"), header=header())
    assert act(seen) == Close("node c joined")
    roomy = view(inside("a", 0), inside("b", 1), node("c"), header=header(max_nodes=4))
    assert decide(roomy, 1.0)[:2] == (None, 6.0)
    assert isinstance(act(roomy, 6.0), Close)
    roomy.put(inside("a", 0, holds=True), 9)
    assert act(roomy, 99.0) is None


@pytest.mark.parametrize("times", [{"ttl": 11.0}, {"ttl": TTL, "outage_timeout": 1.0}])
def test_no_round_is_closed_or_formed_for_a_node_that_does_not_fit(times: dict[str, float]) -> None:
    odd = node("c", **times)
    fitting = node("c", ttl=TTL, outage_timeout=settings().outage_timeout)
    for row, action in ((odd, None), (fitting, Close("node c joined"))):
        seen = view(inside("a", 0), inside("b", 1), row, header=header())
        assert act(seen, 100.0) == action
    found = seat(view(node("a"), node("b"), odd), 0.0)
    assert [row.node for row in found.nodes] == ["a", "b"]
    assert [name for name, _ in found.waiting] == ["c"]


def test_more_nodes_than_the_maximum_wait_as_spares() -> None:
    rows = [reported("a", 0, "stopped"), reported("b", 1, "stopped"), node("c"), node("d")]
    formed = act(view(*rows, header=header(phase="closing")))
    assert [row.node for row in formed.seating.nodes] == ["a", "b", "c"]
    assert [name for name, _ in formed.seating.waiting] == ["d"]


def test_who_leaves_ends_the_job_only_if_too_few_are_left() -> None:
    leaving = reported("b", 1, "stopped", leaving="preempted", leaving_code=75)
    gone = replace(leaving, state="left")
    closing = header(phase="closing")
    ended = act(view(reported("a", 0, "stopped"), gone, header=closing))
    assert (ended.verdict.outcome, ended.verdict.code) == ("preempted", 75)
    assert isinstance(act(view(reported("a", 0, "stopped"), gone, node("c"), header=closing)), Form)


def test_fixed_ranks_are_kept_and_the_second_of_a_rank_waits() -> None:
    rules = settings(2, 2, fixed_ranks=True)
    rows = [node("a", fixed_rank=1), node("b", fixed_rank=1), node("c", fixed_rank=0)]
    seating = act(view(*rows, rules=rules)).seating
    assert [row.node for row in seating.nodes] == ["c", "a"]
    assert "taken by node a" in dict(seating.waiting)["b"]


def test_a_stop_ends_the_job_whatever_it_does() -> None:
    seen = view(inside("a", 0), header=header(1))
    seen.wishes.stop = StopWanted(code=130, reason="torshctl stop")
    assert act(seen).verdict.code == 130


def test_those_who_are_left_when_all_nodes_of_a_round_have_died_go_on_with_the_job() -> None:
    dead = header(2, phase="closing", fence=3, restarts=9, max_restarts=9)
    seen = view(node("a"), node("b"), header=dead)
    seen.sight = replace(seen.sight, blind_until=50.0)
    waits = decide(seen, 4.0)
    assert waits[:2] == (None, 50.0)
    assert "2 node(s)" in waits.why
    assert "at most 46 s more" in waits.why
    renewed = act(seen, 50.0)
    assert isinstance(renewed, Form)
    assert renewed.history.restarts == 9


def test_impossible_ranks_are_told_of_when_too_few_nodes_came() -> None:
    rules = settings(2, 2, fixed_ranks=True)
    rows = [node("a", fixed_rank=0), node("b", fixed_rank=0), node("c", fixed_rank=7)]
    reason = act(view(*rows, rules=rules), 600.0).verdict.reason
    assert "node b: node rank 0 (--node-rank) is taken by node a: give each" in reason
    assert "node c: there is no node rank 7 (--node-rank)." in reason


def test_a_round_larger_than_what_is_wanted_is_closed() -> None:
    seen = view(inside("a", 0), inside("b", 1), inside("c", 2), header=header(3))
    seen.wishes.size = SizeWanted(min_nodes=1, max_nodes=2)
    assert act(seen) == Close("the job was scaled to 2 nodes")


def test_a_node_that_is_to_go_is_told_so_by_the_header() -> None:
    seen = view(inside("a", 0), inside("b", 1), node("c"), header=header())
    seen.drain("c", wanted=True)
    assert act(seen) == Adopt()
    seen.take_header(header(drained=("c",)), 0.0)
    assert act(seen) is None


@pytest.mark.parametrize(
    ("head", "rules"),
    [(header(2, max_nodes=2), settings()), (header(), settings(fixed_ranks=True))],
)
def test_a_round_that_cannot_grow_is_not_closed_for_newcomers(
    head: Header, rules: Settings
) -> None:
    seen = view(inside("a", 0), inside("b", 1), node("c"), header=head, rules=rules)
    assert act(seen, 99.0) is None


def test_a_round_does_not_grow_while_nodes_of_it_are_missing() -> None:
    seen = view(inside("a", 0), node("c"), header=header(fence=3))
    seen.sight = replace(seen.sight, blind_until=50.0)
    assert act(seen, 49.0) is None


def test_who_goes_or_is_drained_leaves_the_job_and_a_failure_beside_it_spends_no_budget() -> None:
    failed = reported("a", 0, "failed")
    gone = reported("b", 1, "stopped", state="left", leaving="preempted")
    seen = view(failed, gone, node("c"), header=header(phase="closing", failed=True))
    following = act(seen)
    assert [row.node for row in following.seating.nodes] == ["a", "c"]
    drained = view(failed, reported("b", 1, "stopped"), node("c"), header=header(phase="closing"))
    drained.drain("b", wanted=True)
    assert [row.node for row in act(drained).seating.nodes] == ["a", "c"]


def test_the_next_round_waits_for_the_last_of_the_grants() -> None:
    seen = view(node("x"), *(inside(name, rank) for rank, name in enumerate("abc")))
    seen.take_header(header(3), 0.0)
    for number, name in enumerate("abc"):
        assert seen.answer_beat(Heartbeat(name, 0, "t", 1, 0), float(number), 99.0)
        seen.drop(name)
    close(seen, header(3, phase="closing"), 3.0)
    assert decide(seen, 3.0).wake == 2.0 + TTL


def test_who_leaves_for_reasons_of_its_own_does_not_end_the_job() -> None:
    gone = reported("b", 1, "lost", state="left", leaving="lost", leaving_code=70)
    seen = view(reported("a", 0, "stopped"), gone, header=header(phase="closing"))
    assert decide(seen, 1.0).why.startswith("for at least 2 node(s) (1 here)")


def test_the_last_call_begins_anew_when_there_were_too_few_meanwhile() -> None:
    seen = view(node("a"), node("b"))
    assert decide(seen, 1.0).wake == 6.0
    seen.drop("b")
    assert act(seen, 3.0) is None
    seen.put(node("b", sequence=2), 9)
    assert decide(seen, 4.0).wake == 9.0


def test_places_go_by_the_order_of_arrival() -> None:
    seen = view(node("z"), node("y"), node("x"), node("w"))
    seen.put(node("z", sequence=2), 9)  # it has new ports
    assert [row.node for row in act(seen).seating.nodes] == ["z", "y", "x"]


# ---- who does not enter


def test_who_was_given_a_place_and_does_not_enter_is_not_waited_for() -> None:
    seen = formed("a", "b", now=1.0)
    seen.put(inside("a", 0, sequence=2), 9)
    waits = decide(seen, 1.0)
    bound = 1.0 + 2 * TTL + 0.02
    assert waits[:2] == (None, bound)
    assert waits.why == "for node b to enter the round, at most 21 s more"
    assert act(seen, bound) == Close("node b did not enter it")
    late = formed("a", "b", now=1.0)
    late.put(inside("a", 0, sequence=2), 9)
    late.put(inside("b", 1, sequence=2), 9)
    assert decide(late, bound) == (None, math.inf, "")


def test_who_never_entered_has_no_place_again_until_it_says_more() -> None:
    seen = formed("a", "b", "c")
    seen.put(inside("a", 0, sequence=2), 9)
    seen.put(inside("b", 1, sequence=2), 9)
    assert isinstance(act(seen, 21.0), Close)
    close(seen, header(3, phase="closing", missed=("c",)), 21.0)
    assert act(seen, 21.0) is None
    seen.put(reported("a", 0, "stopped", sequence=3), 10)
    seen.put(reported("b", 1, "stopped", sequence=3), 10)
    decided = act(seen, 21.0)
    assert isinstance(decided, Form)
    seating = decided.seating
    assert [row.node for row in seating.nodes] == ["a", "b"]
    ((node, why),) = seating.waiting
    assert (node, "did not enter the round" in why) == ("c", True)
    seen.put(replace(seen.rows["c"], sequence=2), 11)
    assert [row.node for row in act(seen, 21.0).seating.nodes] == ["a", "b", "c"]


@pytest.mark.parametrize("phase", ["open", "closing"])
def test_who_never_entered_is_told_so_when_it_comes_back_as_it_was(phase: str) -> None:
    seen = formed("a", "b")
    absent = seen.rows["b"]
    seen.put(inside("a", 0, sequence=2), 9)
    assert isinstance(act(seen, 21.0), Close)
    seen.drop("b")
    close(seen, header(2, phase="closing"), 21.0)
    if phase == "open":
        seen.put(reported("a", 0, "stopped", sequence=3), 10)
        seen.take_header(header(1, number=1, token="u"), 22.0)
        seen.put(inside("a", 0, sequence=4, round=1, token="u"), 11)
    assert act(seen, 22.0) is None
    seen.put(absent, 12)
    assert act(seen, 22.0) == Adopt()
    assert seen.header is not None
    seen.take_header(replace(seen.header, missed=("b",)), 22.0)
    assert act(seen, 22.0) is None


# ---- rows


def test_a_row_that_the_node_had_before_stands_for_nothing() -> None:
    """Somebody who can write to the store, but not as that node, may put an old one back."""
    seen = view(inside("a", 0), inside("b", 1, sequence=4), header=header())
    seen.put(reported("b", 1, "failed", sequence=3), 9)
    assert act(seen) is None
    seen.drop("b")
    seen.put(reported("b", 1, "failed", sequence=3), 9)
    assert "b" not in seen.rows
    seen.put(reported("b", 1, "failed", sequence=5), 10)
    assert act(seen).failed


def test_the_next_round_waits_for_those_inside_and_for_the_grants_of_the_lost() -> None:
    seen = view(inside("a", 0), inside("b", 1), inside("c", 2), header=header(3))
    assert seen.answer_beat(Heartbeat("b", 0, "t", 1, 0), 3.0, 99.0)
    close(seen, header(3, phase="closing"), 4.0)
    assert decide(seen, 4.0) == (None, math.inf, "for node a and 2 more to stop the workers there")
    seen.put(reported("a", 0, "stopped", sequence=2), 9)
    seen.put(reported("c", 2, "stopped", sequence=2), 9)
    assert decide(seen, 4.0).why == "for node b to stop the workers there"
    seen.drop("b")
    waits = decide(seen, 4.0)
    assert waits[:2] == (None, 3.0 + TTL)
    assert waits.why == "for the grant of node b, which is lost, to run out, at most 9 s more"
    seen.put(node("b", sequence=2), 10)  # it was inside, and does not say what became of it
    assert decide(seen, 4.0)[:2] == (None, 3.0 + TTL)
    assert isinstance(act(seen, 3.0 + TTL), Form)


def test_what_another_leader_granted_is_waited_for_too() -> None:
    seen = view(inside("a", 0), inside("b", 1), node("c"), header=header(fence=3))
    seen.sight = replace(seen.sight, inherited_until=50.0)
    close(seen, header(fence=3, phase="closing"), 1.0)
    seen.put(reported("a", 0, "stopped", sequence=2), 9)
    seen.drop("b")
    assert decide(seen, 1.0)[:2] == (None, 50.0)


def test_a_round_of_another_leader_is_not_adopted_while_nodes_of_it_are_missing() -> None:
    seen = view(inside("a", 0), inside("b", 1), header=header(fence=3))
    assert act(seen) == Adopt()
    seen.drop("b")
    seen.sight = replace(seen.sight, inherited_until=50.0)
    assert act(seen) is None


# ---- what is waited for


def test_every_wait_says_for_what() -> None:
    seen = view(node("a"))
    assert decide(seen, 590.5).why == "for at least 2 node(s) (1 here), at most 10 s more"
    seen.put(node("b"), 9)
    assert decide(seen, 1.0).why == "for the last call of nodes, at most 5 s more"
    held = view(inside("a", 0), inside("b", 1), node("c"), header=header())
    assert decide(view(inside("a", 0), inside("b", 1), header=header()), 1.0).why == ""
    held.put(inside("a", 0, holds=True), 9)
    assert decide(held, 1.0).why == "for the job's next checkpoint, to let nodes in"
