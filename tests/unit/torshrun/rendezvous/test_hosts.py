"""Hosts that lose their nodes again and again."""

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

from torshrun.rendezvous.actions import Close
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.restart import STABLE_SECONDS, Hosts


def lose(seen: ClusterState, name: str, number: int, now: float, host: str = "h") -> None:
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
    held = decide(seen, now + 1)
    assert held.wake == now + 2 * TTL
    assert held.why.startswith(
        "for at least 2 node(s) (1 here), at most 599 s more. node b: the host"
    )
    assert len(act(seen, now + 60).seating.nodes) == 2, "without it there are too few"


def trains_without(losses: int, at: float) -> ClusterState:
    """Round 9 of a and c, where b waits, which has been lost so often in a row."""
    seen = view(node("a"))
    for number in range(losses):
        lose(seen, "b", number, 100.0 * number, "b")
    for rank, name in enumerate("ac"):
        seen.put(inside(name, rank, token="t9", round=9, sequence=90), 9)
    seen.put(node("b", sequence=99), 10)
    seen.take_header(header(number=9, token="t9"), at)
    return seen


def test_a_round_is_not_closed_for_a_node_whose_host_is_held_back() -> None:
    seen = trains_without(3, at=211.0)
    waits = decide(seen, 211.0)
    assert waits[:2] == (None, 200.0 + TTL + TTL / 2)
    assert waits.why.startswith("for node b: the host was lost 3 times in a row")
    assert act(seen, 215.0) == Close("node b joined")


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
    assert seen.sight.hosts.free_at("b", needed=False) <= 9000.0


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
    assert (seen.sight.hosts.free_at("b", needed=False) > 0.0) is is_held


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
    assert seen.sight.hosts.free_at("h", needed=False) == TTL / 4


def drop_out(seen: ClusterState, name: str, number: int) -> None:
    """The round closes as a node of it has lost touch, and is back."""
    token = f"t{number}"
    seen.take_header(header(number=number, token=token), 0.0)
    facts = {"token": token, "round": number, "sequence": number + 2}
    seen.put(reported("a", 0, "stopped", **facts), 9)
    seen.put(inside(name, 1, **facts, state="waiting"), 9)
    assert isinstance(act(seen), Close)
    close(seen, header(number=number, token=token, phase="closing"), 0.0)


def test_who_loses_touch_again_and_again_is_held_back_and_others_of_its_host_are_not() -> None:
    seen = view(node("a", host="b"))
    drop_out(seen, "b", 0)
    drop_out(seen, "b", 1)
    assert seen.sight.hosts.free_at("b", needed=False) == TTL / 4
    row = seen.rows["a"]
    seen.put(replace(row, host="b", sequence=row.sequence + 1), 9)
    seen.put(node("c"), 9)
    following = act(seen)
    assert [row.node for row in following.seating.nodes] == ["a", "c"]


def test_who_does_not_enter_again_and_again_is_held_back() -> None:
    seen = formed("a", "b")
    for number in range(2):
        token = f"t{number}"
        seen.sight = seen.sight.with_places(token, ("a", "b"))
        seen.take_header(header(number=number, token=token), 100.0 * number)
        seen.put(inside("a", 0, token=token, round=number, sequence=number + 2), 9)
        assert isinstance(act(seen, 100.0 * number + 21), Close)
    assert seen.sight.hosts.free_at("b", needed=False) == 121.0 + TTL / 4
    closing = formed("a", "b")
    for number in range(2):
        close(closing, header(number=number, token=f"c{number}", phase="closing"), 0.0)
        closing.sight = replace(closing.sight, seated=frozenset("ab"))
        act(closing, 99.0)
    assert closing.sight.hosts.free_at("b", needed=False) == -math.inf, (
        "nobody enters what is closing"
    )


def test_who_is_drained_or_not_lost_yet_does_not_count_against_its_host() -> None:
    seen = view(node("a"))
    for number in range(2):
        token = f"t{number}"
        seen.take_header(header(number=number, token=token), 0.0)
        facts = {"token": token, "round": number, "sequence": number + 2}
        for rank, name in enumerate("bc"):
            seen.put(inside(name, rank, **facts), 9)
        seen.drain("b", wanted=True)
        assert seen.answer_beat(Heartbeat("c", number, token, number + 1, 0), 1.0, 99.0)
        seen.drop("c")
        assert isinstance(act(seen, 2.0), Close)
    assert seen.sight.hosts.free_at("b", needed=False) == -math.inf
    assert seen.sight.hosts.free_at("c", needed=False) == -math.inf


def test_a_host_is_never_held_back_until_the_job_ends_for_want_of_it() -> None:
    hosts = Hosts(settings(join_timeout=8.0))
    for number in range(9):
        hosts = hosts.lose("h", number, 0.0, 100.0)
    assert hosts.free_at("h", needed=True) == 104.0


def test_a_round_that_is_large_enough_is_not_closed_for_a_refused_host() -> None:
    seen = trains_without(5, at=500.0)
    assert decide(seen, 500.0)[:2] == (None, 400.0 + TTL + 3600.0)


def test_of_a_job_with_too_few_nodes_a_round_is_closed_even_for_a_refused_host() -> None:
    seen = view(node("a"))
    for number in range(5):
        lose(seen, "b", number, 100.0 * number, "b")
    seen.take_header(header(1, number=9, token="t9", max_nodes=2), 500.0)
    seen.put(inside("a", 0, token="t9", round=9, sequence=90), 9)
    seen.put(node("b", sequence=99), 10)
    assert act(seen, 500.0) == Close("node b joined")
