"""Describes a run in words, for people and for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from torshrun.ctl.picture import Picture, nodes
from torshrun.rendezvous.rows import Header, NodeRow
from torshrun.text import printable

_ROUND = "number size world_size master_addr master_port restarts max_restarts reason"
_NODE = "host address nproc state round node_rank first_rank standbys"
_VERDICT = "outcome code reason"
"""The fields of the records that --json prints."""
_COLUMNS = ("RANK", "NODE", "ADDRESS", "WORKERS", "STATE")


def in_words(picture: Picture) -> str:
    """Return a few lines about the run, then a line for each node."""
    lines = [f"run {picture.run_id}: {picture.summary}", *_details(picture)]
    if picture.nodes:
        lines += ["", *_table([_COLUMNS, *(_cells(picture, row) for row in picture.nodes)])]
    return "".join(f"{printable(line)}\n" for line in lines)


def in_json(picture: Picture) -> str:
    """Return the state of the run as a JSON object on one line."""
    content = {
        "run": picture.run_id,
        "phase": picture.phase,
        "round": _fields(picture.header, _ROUND),
        "limits": picture.limits,
        "leader": picture.leader.node if picture.leader else None,
        "nodes": [_node_fields(picture, row) for row in picture.nodes],
        "waits": picture.wait.why if picture.wait else None,
        "stop_wanted": picture.stop_wanted.reason if picture.stop_wanted else None,
        "holds": picture.holds,
        "verdict": _fields(picture.verdict, _VERDICT),
    }
    return json.dumps(content) + "\n"


def _fields(record: Any, names: str) -> dict[str, Any] | None:
    return {name: getattr(record, name) for name in names.split()} if record else None


def _node_fields(picture: Picture, row: NodeRow) -> dict[str, Any]:
    return {
        "id": row.node,
        **(_fields(row, _NODE) or {}),
        "in_round": picture.takes_part(row),
        "drained": row.node in picture.asked_to_go,
        "standing": _standing(picture, row),
    }


# ---- the lines above the table


def _details(picture: Picture) -> Iterator[str]:
    header, limits = picture.header, picture.limits
    if limits:
        asked = ", as asked for by torshctl scale" if picture.size_wanted else ""
        yield f"  size: {limits[0]} to {limits[1]} nodes{asked}"
    if header:
        yield f"  restarts: {header.restarts} of {header.max_restarts} used"
        yield f"  master: {header.master_addr} port {header.master_port}"
    if not picture.verdict:
        leader = picture.leader.node if picture.leader else "none at the moment"
        yield f"  leader: {leader}"
        yield from _hints(picture, header)


def _hints(picture: Picture, header: Header | None) -> Iterator[str]:
    if picture.wait:
        yield f"  the job waits {picture.wait.why}"
    if picture.stop_wanted:
        yield f"  its end was requested: {picture.stop_wanted.reason}"
    if picture.holds:
        yield f"  no node is added before the next checkpoint: {', '.join(picture.holds)}"
    known = sum(map(picture.takes_part, picture.nodes))
    if header and header.phase == "open" and known < header.size:
        missing = header.size - known
        yield f"  {nodes(missing)} of the round cannot be seen: starting, lost, or cut off"


# ---- the table


def _cells(picture: Picture, row: NodeRow) -> tuple[str, ...]:
    if picture.takes_part(row):
        rank = str(row.node_rank)
        last = row.first_rank + row.nproc - 1
        workers = f"{row.first_rank}-{last}" if row.nproc > 1 else str(row.first_rank)
    else:
        rank, workers = "-", f"({row.nproc})"
    return rank, row.node, row.address or row.host, workers, _standing(picture, row)


def _standing(picture: Picture, row: NodeRow) -> str:
    if row.leaving or row.state == "left":
        told = row.leaving_reason or row.leaving
        return f"{'has left' if row.state == 'left' else 'is leaving'}: {told}"
    going = "; asked to go" if row.node in picture.asked_to_go else ""
    standbys = f"; {row.standbys} on standby" if row.standbys else ""
    return _part(picture, row) + going + standbys


def _part(picture: Picture, row: NodeRow) -> str:
    if picture.takes_part(row):
        if row.state == "inside":
            return "runs"
        return f"{row.outcome}: {row.cause}" if row.cause else row.outcome
    if row.state == "inside":
        return f"ends round {row.round}"
    place = picture.places.get(row.node)
    told = place.why if place and place.token == picture.round_token else ""
    return f"waits: {told}" if told else "waits"


def _table(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        yield "  ".join(f"{cell:{width}}" for cell, width in cells).rstrip()
