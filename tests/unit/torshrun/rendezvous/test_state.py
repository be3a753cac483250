"""What the leader decides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from torshrun import exit_codes
from torshrun.rendezvous.beats import Beat
from torshrun.rendezvous.rows import Header, NodeRow, StopWanted
from torshrun.rendezvous.settings import Settings
from torshrun.rendezvous.state import Adopt, Close, Conclude, Form, Renew, decide
from torshrun.rendezvous.view import View

TTL = 10.0


def settings(least: int = 2, most: int = 3, **changes: Any) -> Settings:
    return Settings(
        run_id="r", min_nodes=least, max_nodes=most, ttl=TTL, last_call_timeout=5.0, **changes
    )


def node(name: str, **changes: Any) -> NodeRow:
    return NodeRow(**({"node": name, "host": name, "sequence": 1, "state": "waiting"} | changes))


def inside(name: str, rank: int, **changes: Any) -> NodeRow:
    return node(
        name, **({"state": "inside", "round": 0, "token": "t", "node_rank": rank} | changes)
    )


def reported(name: str, rank: int, outcome: str, **changes: Any) -> NodeRow:
    return inside(name, rank, state="reported", outcome=outcome, **changes)


def view(*rows: NodeRow, header: Header | None = None, rules: Settings | None = None) -> View:
    seen = View(rules or settings(), "a", 0.0)
    seen.fence = 7
    seen.take_header(header, 0.0)
    for revision, row in enumerate(rows):
        seen.put(row, revision)
    seen.listed_since_close = True
    return seen


def formed(*names: str, now: float = 0.0, rules: Settings | None = None) -> View:
    """This leader has just formed a round of nodes that have not entered it yet."""
    seen = view(*map(node, names), rules=rules)
    seen.forming["t"] = names
    seen.take_header(header(len(names)), now)
    return seen


def close(seen: View, closing: Header, now: float) -> None:
    """The round is closing, and the leader has seen who is inside."""
    seen.take_header(closing, now)
    seen.listed_since_close = True


def header(size: int = 2, **changes: Any) -> Header:
    facts = {"number": 0, "phase": "open", "token": "t", "fence": 7, "size": size}
    return Header(**(facts | {"min_nodes": 2, "max_nodes": 3} | changes))


def act(seen: View, now: float = 0.0) -> Any:
    return decide(seen, now).action


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


def test_too_few_nodes_end_the_job_in_time() -> None:
    ended = act(view(node("a")), 600.0)
    assert isinstance(ended, Conclude)
    assert ended.verdict.code == exit_codes.RENDEZVOUS


def test_a_failure_closes_the_round_and_is_restarted() -> None:
    failed = reported("b", 1, "failed", code=3, cause="boom")
    seen = view(inside("a", 0), failed, header=header(max_restarts=1))
    closing = act(seen)
    assert closing == Close(0, "node b: boom", failed=True)
    close(seen, header(phase="closing", failed=True, max_restarts=1), 1.0)
    assert act(seen, 1.0) is None
    seen.put(reported("a", 0, "stopped"), 12)
    formed = act(seen, 1.0)
    assert isinstance(formed, Form)
    assert (formed.number, formed.history.restarts) == (1, 1)


@pytest.mark.parametrize(
    ("budget", "spent", "code", "sequel"),
    [(0, 0, 3, "no budget"), (2, 2, exit_codes.BUDGET_SPENT, "budget spent")],
)
def test_without_budget_the_root_cause_is_the_verdict(
    budget: int, spent: int, code: int, sequel: str
) -> None:
    first = reported("b", 1, "failed", code=1, cause="PeerLost")
    cause = reported("a", 0, "failed", code=3, signo=11, cause="died of SIGSEGV")
    closing = header(phase="closing", failed=True, max_restarts=budget, restarts=spent)
    verdict = act(view(first, cause, header=closing)).verdict
    assert (verdict.code, verdict.sequel, verdict.reason) == (
        code,
        sequel,
        "node a: died of SIGSEGV",
    )


def test_the_root_cause_is_what_follows_from_nothing() -> None:
    follows = reported("b", 1, "failed", code=1, signo=6, follows=True, cause="PeerLost")
    cause = reported("a", 0, "failed", code=3, cause="boom")
    closing = header(phase="closing", failed=True)
    verdict = act(view(follows, cause, header=closing)).verdict
    assert (verdict.code, verdict.reason) == (3, "node a: boom")


def test_the_next_round_waits_until_all_were_listed_who_entered_this_one() -> None:
    """What is heard of the nodes may lag behind what is heard of the header."""
    seen = formed("a", "b")
    seen.take_header(header(phase="closing"), 1.0)
    assert decide(seen, 1.0)[:2] == (None, math.inf)
    seen.listed_since_close = True
    assert isinstance(act(seen, 1.0), Form)


def test_failures_that_follow_from_a_lost_node_spend_no_budget() -> None:
    seen = view(inside("a", 0), inside("b", 1), node("c"), header=header())
    seen.put(reported("a", 0, "failed", code=1), 5)
    assert act(seen).failed
    close(seen, header(phase="closing", failed=True), 1.0)
    assert act(seen, 1.0) is None
    seen.drop("b")
    formed = act(seen, 1.0 + TTL)
    assert isinstance(formed, Form)
    assert formed.history.restarts == 0


def test_a_node_without_a_row_is_lost_once_its_beats_have_run_out() -> None:
    seen = view(inside("a", 0), inside("b", 1), header=header())
    assert seen.answer_beat(Beat("b", 0, "t", 1, 0), 100.0, 200.0)
    seen.drop("b")
    assert decide(seen, 105.0)[:2] == (None, 110.0)
    assert seen.answer_beat(Beat("b", 0, "t", 2, 1), 108.0, 200.0)
    assert decide(seen, 110.0)[:2] == (None, 118.0)
    assert isinstance(act(seen, 118.0), Close)


def test_nodes_of_another_leaders_round_have_time_to_come_back() -> None:
    seen = view(inside("a", 0), header=header(fence=3))
    seen.blind_until = 50.0
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
    seen.blind_until = seen.inherited_until = 999.0
    assert isinstance(act(seen), Close)
    close(seen, header(fence=3, phase="closing"), 0.0)
    assert isinstance(act(seen), Form)


def test_nobody_is_granted_a_round_that_is_closing() -> None:
    seen = view(inside("a", 0), inside("b", 1), header=header())
    assert not seen.answer_beat(Beat("b", 0, "t", 1, 0), 1.0, 1.0)  # the leader's own grant is over
    seen.take_header(header(phase="closing"), 1.0)
    assert not seen.answer_beat(Beat("b", 0, "t", 2, 0), 1.0, 9.0)


def test_newcomers_are_let_in_at_once_if_they_fill_the_job() -> None:
    seen = view(inside("a", 0), inside("b", 1), node("c"), header=header())
    assert act(seen) == Close(0, "node c joined")
    roomy = view(inside("a", 0), inside("b", 1), node("c"), header=header(max_nodes=4))
    assert decide(roomy, 1.0)[:2] == (None, 6.0)
    assert isinstance(act(roomy, 6.0), Close)
    roomy.wishes.holds.add("a")
    assert act(roomy, 99.0) is None


def test_more_nodes_than_the_maximum_wait_as_spares() -> None:
    rows = [reported("a", 0, "stopped"), reported("b", 1, "stopped"), node("c"), node("d")]
    formed = act(view(*rows, header=header(phase="closing")))
    assert [row.node for row in formed.seating.nodes] == ["a", "b", "c"]
    assert [name for name, _ in formed.seating.waiting] == ["d"]


def test_success_needs_all_nodes_of_the_round() -> None:
    seen = view(reported("a", 0, "succeeded"), inside("b", 1), header=header())
    assert act(seen) is None
    seen.put(reported("b", 1, "succeeded"), 8)
    assert act(seen).verdict.outcome == "succeeded"


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


def test_a_job_that_has_died_with_all_its_nodes_is_forgotten_once_none_can_run() -> None:
    dead = header(2, phase="closing", fence=3, restarts=9, max_restarts=9)
    seen = view(node("a"), node("b"), header=dead)
    seen.blind_until = 50.0
    waits = decide(seen, 4.0)
    assert waits[:2] == (None, 50.0)
    assert "2 node(s)" in waits.why
    assert "at most 46 s more" in waits.why
    assert act(seen, 50.0) == Renew()
    seen.put(reported("c", 0, "stopped"), 9)  # one of them lives: it is the same job
    renewed = act(seen, 50.0)
    assert isinstance(renewed, Form)
    assert renewed.history.restarts == 9


def test_impossible_ranks_are_told_of_when_too_few_nodes_came() -> None:
    rules = settings(2, 2, fixed_ranks=True)
    rows = [node("a", fixed_rank=0), node("b", fixed_rank=0), node("c", fixed_rank=7)]
    reason = act(view(*rows, rules=rules), 600.0).verdict.reason
    assert "node b: node rank 0 (--node-rank) is taken by node a." in reason
    assert "node c: there is no node rank 7 (--node-rank)." in reason


@pytest.mark.parametrize("code", [0, -3, 10**6])
def test_an_odd_code_of_a_failure_counts_as_one(code: int) -> None:
    cause = reported("a", 0, "failed", code=code)
    seen = view(cause, reported("b", 1, "stopped"), header=header(phase="closing", failed=True))
    assert act(seen).verdict.code == 1
