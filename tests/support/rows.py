"""Records of a run, and its keys in a store."""

from __future__ import annotations

from typing import Any

from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import Header, NodeRow

TOKEN = "now"


def header(size: int = 1, **fields: Any) -> Header:
    """Of a round that runs."""
    return Header(
        **{"number": 3, "phase": "open", "token": TOKEN, "fence": 1, "size": size, "max_nodes": 4}
        | fields
    )


def node(name: str, rank: int = -1, *, state: str = "inside", **fields: Any) -> NodeRow:
    """One of that round if it has a rank."""
    placed = {"round": 3, "token": TOKEN, "node_rank": rank, "first_rank": rank}
    return NodeRow(
        **{"node": name, "sequence": 1, "state": state, "host": name, "address": "10.0.0.1"}
        | (placed if rank >= 0 else {})
        | fields
    )


def keys(*records: Header | NodeRow) -> dict[str, bytes]:
    """As the store holds them, without what all keys of the run begin with."""
    return {_key(record): rows.encode(record) for record in records}


def _key(record: Header | NodeRow) -> str:
    return rows.ROUND if isinstance(record, Header) else rows.NODES + record.node
