"""Decodes the state of a run from its keys in the store. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torsh_runtime.errors import TorshError
from torshrun.rendezvous import rows


class NotDone(TorshError):
    """Raised if there is no such run or node, or if a request is not fulfilled in time."""


Phase = Literal["gathering", "running", "changing", "ended", "abandoned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Holds the state of a run at one revision of the store."""

    run_id: str
    nodes: tuple[rows.NodeRow, ...]
    """The nodes by node rank, then those without a rank."""
    leader: rows.LeaderRow | None = None
    header: rows.Header | None = None
    verdict: rows.VerdictRow | None = None
    places: Mapping[str, rows.PlaceRow]
    """Place in the queue, by node id."""
    size_wanted: rows.SizeWanted | None = None
    stop_wanted: rows.StopWanted | None = None
    wait: rows.WaitRow | None = None
    """The event that its leader waits for."""
    drains: frozenset[str] = frozenset()
    """Ids of nodes that are to leave."""

    @property
    def is_there(self) -> bool:
        return bool(self.nodes or self.header or self.leader or self.verdict)

    @property
    def is_abandoned(self) -> bool:
        """Return whether a run has no nodes left and no verdict."""
        return bool(self.header) and not (self.verdict or self.leader or self.present)

    @property
    def phase(self) -> Phase:
        """Return the phase.

        `gathering` means that there was no round yet, and `changing` that the next round is about
        to begin.
        """
        if self.verdict:
            return "ended"
        if self.is_abandoned:
            return "abandoned"
        if self.header is None:
            return "gathering"
        return "running" if self.header.phase == "open" else "changing"

    @property
    def summary(self) -> str:
        """Describe the state of the run in words."""
        verdict, header = self.verdict, self.header
        if verdict:
            return f"ended with code {verdict.code}: {verdict.outcome}, {verdict.reason}"
        if header is None:
            return f"no round yet; {nodes(len(self.present))} present"
        if self.is_abandoned:
            return f"abandoned: no node of round {header.number} is left (torshctl forget)"
        if header.phase == "closing":
            return f"round {header.number} is ending: {header.reason}"
        workers = f"{header.world_size} worker{'' if header.world_size == 1 else 's'}"
        return f"round {header.number} runs on {nodes(header.size)} with {workers}"

    @property
    def round_token(self) -> str:
        """Return the token that identifies the round, or an empty string before the first."""
        return self.header.token if self.header else ""

    @property
    def limits(self) -> tuple[int, int] | None:
        """Return the fewest and the most nodes, or None if only the nodes know them."""
        source = self.size_wanted or self.header
        return (source.min_nodes, source.max_nodes) if source else None

    @property
    def present(self) -> tuple[rows.NodeRow, ...]:
        """Return the nodes that have not left."""
        return tuple(row for row in self.nodes if row.state != "left")

    @property
    def staying(self) -> tuple[rows.NodeRow, ...]:
        """Return the nodes that are present and were not asked to leave."""
        return tuple(
            row for row in self.present if not row.leaving and row.node not in self.asked_to_go
        )

    @property
    def spares(self) -> tuple[rows.NodeRow, ...]:
        """Return the nodes that are not in the round but would join it."""
        return tuple(row for row in self.staying if not self.takes_part(row))

    @property
    def asked_to_go(self) -> frozenset[str]:
        return self.drains.union(self.header.drained if self.header else ())

    @property
    def holds(self) -> list[str]:
        """Return the ids of nodes that currently do not want any node to be added."""
        return sorted(row.node for row in self.nodes if row.holds)

    def takes_part(self, row: rows.NodeRow) -> bool:
        return _is_of(row, self.header)


def read(run_id: str, items: Mapping[str, bytes]) -> Picture:
    """Decode a run from `items`, its keys without their common prefix."""
    nodes = [row for name, row in _under(rows.NODES, rows.NodeRow, items) if row.node == name]
    header = _one(rows.ROUND, rows.Header, items)
    placed = [row for row in nodes if _is_of(row, header)]
    others = [row for row in nodes if not _is_of(row, header)]
    return Picture(
        run_id=run_id,
        nodes=(*sorted(placed, key=lambda row: row.node_rank), *others),
        leader=_one(rows.LEADER, rows.LeaderRow, items),
        header=header,
        verdict=_one(rows.VERDICT, rows.VerdictRow, items),
        places=dict(_under(rows.PLACES, rows.PlaceRow, items)),
        size_wanted=_one(rows.WANT_SIZE, rows.SizeWanted, items),
        stop_wanted=_one(rows.WANT_STOP, rows.StopWanted, items),
        wait=_one(rows.WAIT, rows.WaitRow, items),
        drains=frozenset(_names(rows.WANT_DRAIN, items)),
    )


def find_nodes(picture: Picture, names: Sequence[str]) -> tuple[rows.NodeRow, ...]:
    """Return the nodes that `names` name, by id, host, address or node rank.

    Raises NotDone if a name fits no node, or more than one.
    """
    return tuple(dict.fromkeys(_find(picture, name) for name in names))


def _find(picture: Picture, name: str) -> rows.NodeRow:
    present = picture.present
    ways = (
        [row for row in present if row.node == name],
        [row for row in present if name in (row.host, row.address)],
        [row for row in present if picture.takes_part(row) and str(row.node_rank) == name],
    )
    found: list[rows.NodeRow] = next(filter(None, ways), [])
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(row.node for row in found)
        raise NotDone(f"{name} names {len(found)} nodes of run {picture.run_id}: give one of {ids}")
    there = ", ".join(f"{row.node} ({row.address})" for row in present) or "none"
    raise NotDone(
        f"run {picture.run_id} has no node {name}, by id, host, address or node rank; its nodes "
        f"are: {there}"
    )


def _is_of(row: rows.NodeRow, header: rows.Header | None) -> bool:
    return bool(header and row.token == header.token and row.state != "waiting")


def _one(key: str, kind: type[rows.T], items: Mapping[str, bytes]) -> rows.T | None:
    return rows.decode(kind, items.get(key))


def _under(
    prefix: str, kind: type[rows.T], items: Mapping[str, bytes]
) -> Iterator[tuple[str, rows.T]]:
    for name in sorted(_names(prefix, items)):
        row = rows.decode(kind, items[prefix + name])
        if row is not None:
            yield name, row


def _names(prefix: str, items: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the names below `prefix` whose values were signed with the secret."""
    return (key.removeprefix(prefix) for key in items if key.startswith(prefix) and items[key])


def nodes(count: int, kind: str = "") -> str:
    """Return a count such as "1 node", "2 nodes" or "2 more nodes"."""
    return f"{count} {kind}node{'' if count == 1 else 's'}"
