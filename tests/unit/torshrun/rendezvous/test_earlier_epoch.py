"""What the leader decides when the store has lost what it held."""

from __future__ import annotations

import math
from typing import Any

from support.led_nodes import (
    TTL,
    act,
    decide,
    inside,
    node,
    settings,
    view,
)

from torshrun.rendezvous.actions import Form
from torshrun.rendezvous.rows import NodeRow


def earlier(name: str, token: str = "old", **changes: Any) -> NodeRow:
    facts = {"round": 6, "token": token, "round_size": 3, "round_leader": "c", "restarts": 2}
    facts |= {"node_rank": 0, "first_rank": 0}
    return node(name, **(facts | changes))


def test_the_nodes_of_an_earlier_epochs_round_are_waited_for() -> None:
    seen = view(earlier("a"), earlier("b"), node("d"))
    waits = decide(seen, 10.0)
    assert waits[:2] == (None, 10.0 + 2 * TTL)
    assert waits.why.startswith("for the grants of 1 node(s) to run out, which were in a round")
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


def test_a_round_that_none_of_its_nodes_tells_of_may_last_as_long_as_an_outage() -> None:
    seen = view(earlier("a", node_rank=-1), earlier("d", "older", round=4))
    bound = 10.0 + settings().outage_timeout + 2 * TTL
    assert decide(seen, 10.0).wake == bound
    seen.put(earlier("b"), 9)
    assert decide(seen, 12.0).wake == 12.0 + 2 * TTL
    assert decide(seen, 12.0).why.startswith("for the grants of 2 node(s) to run out")


def test_a_node_inside_an_unknown_round_is_waited_for_until_it_says_otherwise() -> None:
    seen = view(node("a"), inside("b", 0), node("c"))
    assert decide(seen, 999.0) == (None, math.inf, "for node b to stop the workers there")
    seen.put(node("b", sequence=2), 9)
    assert isinstance(act(seen, 999.0), Form)
