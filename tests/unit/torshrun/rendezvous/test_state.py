"""What the leader decides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from torshrun import exit_codes
from torshrun.rendezvous.beats import Beat
from torshrun.rendezvous.restart import STABLE_SECONDS
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


# ---- who does not enter


def test_who_was_given_a_place_and_does_not_enter_is_not_waited_for() -> None:
    seen = formed("a", "b", now=1.0)
    seen.put(inside("a", 0, sequence=2), 9)
    waits = decide(seen, 1.0)
    bound = 1.0 + 2 * TTL + 0.02
    assert waits[:2] == (None, bound)
    assert waits.why == "for node b to enter the round, at most 21 s more"
    assert act(seen, bound) == Close(0, "node b did not enter it")
    late = formed("a", "b", now=1.0)
    late.put(inside("a", 0, sequence=2), 9)
    late.put(inside("b", 1, sequence=2), 9)
    assert decide(late, bound) == (None, math.inf, "")


def test_the_next_round_is_formed_though_somebody_never_entered() -> None:
    seen = formed("a", "b", "c")
    seen.put(inside("a", 0, sequence=2), 9)
    seen.put(inside("b", 1, sequence=2), 9)
    assert isinstance(act(seen, 21.0), Close)
    close(seen, header(3, phase="closing"), 21.0)
    assert act(seen, 21.0) is None
    seen.put(reported("a", 0, "stopped", sequence=3), 10)
    seen.put(reported("b", 1, "stopped", sequence=3), 10)
    assert [row.node for row in act(seen, 21.0).seating.nodes] == ["a", "b", "c"]


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


def test_a_success_stands_whatever_befalls_its_node() -> None:
    seen = view(reported("a", 0, "succeeded"), inside("b", 1), header=header())
    seen.put(inside("a", 0, state="waiting", sequence=2), 8)  # it lost touch afterwards
    assert act(seen) is None
    seen.drop("a")
    assert act(seen) is None
    seen.put(reported("b", 1, "succeeded", sequence=2), 9)
    assert act(seen).verdict.outcome == "succeeded"


def test_a_failed_node_that_is_lost_too_is_a_loss() -> None:
    seen = view(inside("a", 0), reported("b", 1, "failed"), node("c"), header=header())
    close(seen, header(phase="closing", failed=True), 1.0)
    seen.put(reported("a", 0, "stopped", sequence=2), 8)
    assert isinstance(act(seen, 1.0), Conclude)
    seen.drop("b")
    following = act(seen, 1.0)
    assert isinstance(following, Form)
    assert [row.node for row in following.seating.nodes] == ["a", "c"]


def test_failures_are_told_in_the_order_in_which_they_came() -> None:
    seen = view(inside("a", 0), inside("b", 1), header=header())
    seen.put(reported("b", 1, "failed", code=3, sequence=2), 8)
    seen.put(reported("a", 0, "failed", code=4, sequence=2), 9)
    seen.put(reported("b", 1, "failed", code=3, sequence=3, leaving="stopped"), 10)
    assert seen.roster.failures == ["b", "a"]


def test_the_next_round_waits_for_those_inside_and_for_the_grants_of_the_lost() -> None:
    seen = view(inside("a", 0), inside("b", 1), inside("c", 2), header=header(3))
    assert seen.answer_beat(Beat("b", 0, "t", 1, 0), 3.0, 99.0)
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
    seen.inherited_until = 50.0
    close(seen, header(fence=3, phase="closing"), 1.0)
    seen.put(reported("a", 0, "stopped", sequence=2), 9)
    seen.drop("b")
    assert decide(seen, 1.0)[:2] == (None, 50.0)


def test_a_round_of_another_leader_is_not_adopted_while_nodes_of_it_are_missing() -> None:
    seen = view(inside("a", 0), inside("b", 1), header=header(fence=3))
    assert act(seen) == Adopt()
    seen.drop("b")
    seen.inherited_until = 50.0
    assert act(seen) is None


def test_after_a_failure_the_pause_is_kept() -> None:
    rows = [reported("a", 0, "failed"), reported("b", 1, "stopped")]
    seen = view(*rows, header=header(max_restarts=1))
    close(seen, header(phase="closing", failed=True, max_restarts=1, delay=7.0), 2.0)
    assert decide(seen, 2.0) == (
        None,
        9.0,
        "for the pause after a failure to end, at most 7 s more",
    )
    assert isinstance(act(seen, 9.0), Form)


# ---- an earlier epoch


def earlier(name: str, token: str = "old", **changes: Any) -> NodeRow:
    facts = {"round": 6, "token": token, "round_size": 3, "round_leader": "c", "restarts": 2}
    return node(name, **(facts | changes))


def test_the_nodes_of_an_earlier_epochs_round_are_waited_for() -> None:
    seen = view(earlier("a"), earlier("b"), node("d"))
    waits = decide(seen, 10.0)
    assert waits[:2] == (None, 10.0 + 2 * TTL)
    assert waits.why.startswith("for the grants of 1 node(s) to run out, which were in an earlier")
    assert decide(seen, 12.0).wake == 10.0 + 2 * TTL
    following = act(seen, 10.0 + 2 * TTL)
    assert isinstance(following, Form)
    assert (following.number, following.history.restarts) == (7, 2)


def test_its_leader_granted_nothing_after_it_has_come_here() -> None:
    seen = view(earlier("a"), earlier("x", "older", round=4), rules=settings(most=5))
    assert decide(seen, 10.0).wake == 10.0 + 2 * TTL
    seen.put(earlier("c"), 9)
    assert decide(seen, 13.0).wake == 13.0 + TTL
    seen.put(earlier("b"), 10)  # now all of that round are here
    assert decide(seen, 14.0).why.startswith("for the last call")


def test_a_node_inside_an_unknown_round_is_waited_for_until_it_says_otherwise() -> None:
    seen = view(node("a"), inside("b", 0), node("c"))
    assert decide(seen, 999.0) == (None, math.inf, "for node b to stop the workers there")
    seen.put(node("b", sequence=2), 9)
    assert isinstance(act(seen, 999.0), Form)


# ---- hosts


def lose(seen: View, name: str, number: int, now: float, host: str = "h") -> None:
    """The round closes as that node is lost soon after it has entered; the other has reported."""
    token = f"t{number}"
    seen.take_header(header(number=number, token=token), now)
    for rank, one in enumerate(("a", name)):
        facts = {"token": token, "round": number, "sequence": number + 2}
        seen.put(inside(one, rank, **facts, host="x" if one == "a" else host), 9)
    seen.drop(name)
    assert isinstance(act(seen, now + TTL), Close)
    close(seen, header(number=number, token=token, phase="closing"), now + TTL)
    report = reported("a", 0, "stopped", token=token, round=number, sequence=number + 3)
    seen.put(report, 9)


def test_a_host_that_loses_its_nodes_again_and_again_is_held_back() -> None:
    seen, pauses, now = view(node("a")), [], 0.0
    for number in range(6):
        name = f"b{number}"
        seen.put(node(name, host="h"), 9)
        lose(seen, name, number, now)
        now += TTL
        seen.put(node(f"b{number + 1}", host="h"), 9)
        waits = decide(seen, now)
        pauses.append(0.0 if waits.action else waits.wake - now)
        now += 100.0
    unit = TTL / 4
    assert pauses == [0.0, unit, 2 * unit, 4 * unit, 8 * unit, 16 * unit]


def test_after_five_losses_a_host_waits_for_an_hour_unless_the_job_has_too_few_nodes() -> None:
    seen = view(node("a"))
    for number in range(5):
        lose(seen, "b", number, 100.0 * number, "b")
    now = 400.0 + TTL
    seen.put(node("b", sequence=99), 9)
    seen.put(node("c"), 10)
    following = act(seen, now + 60)
    assert [row.node for row in following.seating.nodes] == ["a", "c"]
    ((who, why),) = following.seating.waiting
    assert (who, "5 times in a row" in why) == ("b", True)
    assert len(act(seen, now + 3600).seating.nodes) == 3
    seen.drop("c")
    assert len(act(seen, now + 60).seating.nodes) == 2, "without it there are too few"


def test_a_round_is_not_closed_for_a_node_whose_host_is_held_back() -> None:
    seen = view(node("a"))
    for number in range(3):
        lose(seen, "b", number, 100.0 * number, "b")
    for rank, name in enumerate("ac"):
        seen.put(inside(name, rank, token="t9", round=9, sequence=50), 9)
    seen.put(node("b", sequence=99), 10)
    seen.take_header(header(number=9, token="t9"), 211.0)
    waits = decide(seen, 211.0)
    assert waits[:2] == (None, 200.0 + TTL + TTL / 2)
    assert waits.why.startswith("for node b: the host was lost 3 times in a row")
    assert act(seen, 215.0) == Close(9, "node b joined")


def test_losses_count_only_if_the_round_had_not_lasted() -> None:
    seen = view(node("a"))
    for number in range(9):
        token = f"t{number}"
        seen.take_header(header(number=number, token=token), 1000.0 * number)
        row = inside("b", 1, token=token, round=number, sequence=2 * number + 2)
        seen.put(inside("a", 0, token=token, round=number, sequence=number + 2), 9)
        seen.put(row, 9)
        seen.put(replace(row, state="waiting", sequence=row.sequence + 1), 9)
        assert isinstance(act(seen, 1000.0 * number + STABLE_SECONDS), Close)
    assert seen.hosts.free_at("b", needed=False) <= 9000.0


@pytest.mark.parametrize(("leaving", "is_held"), [("preempted", False), ("lost", True)])
def test_who_goes_because_somebody_said_so_does_not_count_against_its_host(
    leaving: str, is_held: bool
) -> None:
    seen = view(node("a"))
    for number in range(3):
        token = f"t{number}"
        seen.take_header(header(number=number, token=token), 0.0)
        row = reported("b", 1, "stopped", token=token, round=number, sequence=number + 2)
        seen.put(replace(row, state="left", leaving=leaving), 9)
        assert isinstance(act(seen), Close)
    assert (seen.hosts.free_at("b", needed=False) > 0.0) is is_held


def test_a_newcomer_that_is_gone_when_the_round_was_closed_for_it_counts_against_its_host() -> None:
    seen = view(node("a"))
    for number in range(2):
        token = f"t{number}"
        seen.take_header(header(number=number, token=token), 0.0)
        for rank, name in enumerate("ac"):
            row = inside(name, rank, token=token, round=number, sequence=number + 2)
            seen.put(row, 9)
        seen.put(node(f"b{number}", host="h"), 10)
        assert isinstance(act(seen), Close)
        close(seen, header(number=number, token=token, phase="closing"), 0.0)
        seen.drop(f"b{number}")
        assert act(seen) is None
    assert seen.hosts.free_at("h", needed=False) == TTL / 4


# ---- what is waited for


def test_every_wait_says_for_what() -> None:
    seen = view(node("a"))
    assert decide(seen, 590.5).why == "for at least 2 node(s) (1 here), at most 10 s more"
    seen.put(node("b"), 9)
    assert decide(seen, 1.0).why == "for the last call of nodes, at most 5 s more"
    held = view(inside("a", 0), inside("b", 1), node("c"), header=header())
    assert decide(view(inside("a", 0), inside("b", 1), header=header()), 1.0).why == ""
    held.wishes.holds.add("a")
    assert decide(held, 1.0).why == "for the job's next checkpoint, to let nodes in"
