"""Nodes of a round as their leader sees them, for tests of what it decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torshrun.rendezvous.actions import Decision
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.rows import Header, NodeRow
from torshrun.rendezvous.settings import Settings
from torshrun.rendezvous.state import decide as decide_purely

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
    return inside(name, rank, **({"state": "reported", "outcome": outcome} | changes))


class Heard(ClusterState):
    """By whose leader all nodes are heard."""

    def hears(self, node: str) -> bool:
        return True


def view(
    *rows: NodeRow, header: Header | None = None, rules: Settings | None = None
) -> ClusterState:
    seen = Heard(rules or settings(), "a", 0.0)
    seen.term = replace(seen.term, fence=7)
    seen.take_header(header, 0.0)
    for revision, row in enumerate(rows):
        seen.put(row, revision)
    seen.sight = replace(seen.sight, listed_since_close=True)
    return seen


def formed(*names: str, now: float = 0.0, rules: Settings | None = None) -> ClusterState:
    """This leader has just formed a round of nodes that have not entered it yet."""
    seen = view(*map(node, names), rules=rules)
    seen.sight = seen.sight.with_places("t", names)
    seen.take_header(header(len(names)), now)
    return seen


def close(seen: ClusterState, closing: Header, now: float) -> None:
    """The round is closing, and the leader has seen who is inside."""
    seen.take_header(closing, now)
    seen.sight = replace(seen.sight, listed_since_close=True)


def header(size: int = 2, **changes: Any) -> Header:
    facts = {"number": 0, "phase": "open", "token": "t", "fence": 7, "size": size}
    return Header(**(facts | {"min_nodes": 2, "max_nodes": 3} | changes))


def decide(seen: ClusterState, now: float) -> Decision:
    """What the leader decides, who remembers from then on what it has seen."""
    seen.sight, decision = decide_purely(seen, now)
    return decision


def act(seen: ClusterState, now: float = 0.0) -> Any:
    return decide(seen, now).action
