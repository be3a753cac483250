"""How the leader replaces lost workers while all others continue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.led_nodes import header, inside, reported, view

from torshrun.rendezvous.actions import Action, Close, Mend, Mended
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.mending import awaited, step
from torshrun.rendezvous.rows import Header, NodeRow

ROUND = 2


def whole(**changes: Any) -> Header:
    return replace(header(), number=ROUND, size=2, max_restarts=3, **changes)


def stands(name: str, rank: int, standing: str = "", number: int = ROUND, **more: Any) -> NodeRow:
    return inside(name, rank, round=number, standing=standing, **more)


def decided(*nodes: NodeRow, **changes: Any) -> tuple[ClusterState, Action | None]:
    own = whole(**changes)
    seen = view(*nodes, header=own)
    return seen, step(seen, own)


def test_nothing_is_to_be_done_while_no_worker_is_lost() -> None:
    assert decided(stands("a", 0), stands("b", 1))[1] is None


def test_a_lost_worker_ends_the_round_once_all_nodes_are_in_it() -> None:
    lost = stands("b", 1, "lost")
    _, action = decided(stands("a", 0), lost)
    assert isinstance(action, Mend)
    assert "node b" in action.reason
    assert decided(lost)[1] is None  # a has not entered yet, or is lost


def test_what_a_node_says_of_an_earlier_round_is_no_loss() -> None:
    assert decided(stands("a", 0), stands("b", 1, "parked", ROUND - 1))[1] is None


def test_the_next_round_begins_when_all_have_left_this_one() -> None:
    parked, bare = stands("a", 0, "parked", seconds=4.0), stands("b", 1, "bare", seconds=7.0)
    for late in (stands("b", 1), stands("b", 1, "lost"), stands("b", 1, "parked", ROUND - 1)):
        seen, action = decided(parked, late, mending=True)
        assert action is None
        assert awaited(seen, whole(mending=True)) == ("for the workers of node b to leave round 2")
    seen, action = decided(parked, bare, mending=True)
    assert isinstance(action, Mended)
    assert action.history.restarts == seen.history.restarts + 1
    assert awaited(seen, whole(mending=True)) == ""


def test_all_restart_if_some_cannot_go_on() -> None:
    _, action = decided(stands("a", 0, "lost"), stands("b", 1, "unable"))
    assert action == Close(
        "workers were lost, and those of node b cannot go on without them", failed=True
    )


def test_all_restart_if_nobody_has_the_state() -> None:
    _, action = decided(stands("a", 0, "bare"), stands("b", 1, "bare"), mending=True)
    assert action == Close("all workers were lost", failed=True)


def test_the_round_closes_if_no_restarts_are_left() -> None:
    lost = stands("b", 1, "lost")
    _, action = decided(stands("a", 0), lost, restarts=3)
    assert action == Close("workers were lost, and no restarts are left", failed=True)


def test_all_restart_if_the_workers_of_a_node_have_ended() -> None:
    _, action = decided(
        reported("a", 0, "succeeded", round=ROUND), stands("b", 1, "lost"), mending=True
    )
    assert isinstance(action, Close)
    assert action.reason == "workers were lost, and those of node a have ended"
