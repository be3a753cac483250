"""What follows from what nodes report of their workers."""

from __future__ import annotations

import pytest
from support.led_nodes import (
    TTL,
    act,
    close,
    decide,
    header,
    inside,
    node,
    reported,
    view,
)

from torshrun import exit_codes
from torshrun.rendezvous.actions import Close, Conclude, Form


def test_a_failure_closes_the_round_and_is_restarted() -> None:
    failed = reported("b", 1, "failed", code=3, cause="boom")
    seen = view(inside("a", 0), failed, header=header(max_restarts=1))
    closing = act(seen)
    assert closing == Close("node b: boom", failed=True)
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


def test_success_needs_all_nodes_of_the_round() -> None:
    seen = view(reported("a", 0, "succeeded"), inside("b", 1), header=header())
    assert act(seen) is None
    seen.put(reported("b", 1, "succeeded"), 8)
    assert act(seen).verdict.outcome == "succeeded"


@pytest.mark.parametrize("code", [0, -3, 10**6])
def test_an_odd_code_of_a_failure_counts_as_one(code: int) -> None:
    cause = reported("a", 0, "failed", code=code)
    seen = view(cause, reported("b", 1, "stopped"), header=header(phase="closing", failed=True))
    assert act(seen).verdict.code == 1


def test_failures_beside_nodes_that_nothing_is_known_of_spend_no_budget() -> None:
    rows = [reported("a", 0, "failed"), node("b")]
    assert isinstance(act(view(*rows, header=header(phase="closing", fence=3))), Form)


def test_who_is_hung_has_a_code_of_its_own_and_is_the_last_to_blame() -> None:
    hung = reported("a", 0, "hung", code=9)
    closing = header(phase="closing", failed=True)
    assert act(view(hung, reported("b", 1, "stopped"), header=closing)).verdict.code == (
        exit_codes.HUNG
    )
    failed = reported("b", 1, "failed", code=3)
    assert act(view(hung, failed, header=closing)).verdict.code == 3


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
