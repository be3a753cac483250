"""What people ask of a running job through the store, and how it stands. For torshctl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torsh_runtime.errors import RendezvousError
from torsh_runtime.store.base import Entry, Put, Store
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import (
    Header,
    LeaderRow,
    NodeRow,
    SizeWanted,
    StopWanted,
    VerdictRow,
)

T = TypeVar("T")

KEPT = 3600.0
"""Seconds for which a request stands in the store, so that none outlives its job for long."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A job as its nodes see it."""

    header: Header | None
    """The round; None while none has been formed."""
    leader: LeaderRow | None
    verdict: VerdictRow | None
    nodes: tuple[NodeRow, ...]


async def status(store: Store, run_id: str) -> RunStatus:
    """How the job stands. RendezvousError when the store knows of no such job."""
    base = rows.base(run_id)
    listed = {item.key.removeprefix(base): item for item in (await store.list(base)).items}
    if not any(name.startswith((rows.CONTROL, rows.NODES)) for name in listed):
        raise RendezvousError(
            f"the store knows of no run {run_id!r}. Look at the spelling of --rdzv-id, and whether "
            f"this is the store that the job uses."
        )
    nodes = (rows.decode(NodeRow, item.value) for name, item in listed.items() if _is_node(name))
    return RunStatus(
        header=_read(Header, listed.get(rows.ROUND)),
        leader=_read(LeaderRow, listed.get(rows.LEADER)),
        verdict=_read(VerdictRow, listed.get(rows.VERDICT)),
        nodes=tuple(node for node in nodes if node is not None),
    )


async def scale(store: Store, run_id: str, nodes: int, at_least: int | None = None) -> None:
    """Ask for so many nodes; the job goes on with `at_least` of them, all by default.

    RendezvousError when there is no such job, or no such number.
    """
    least = nodes if at_least is None else at_least
    if not 1 <= least <= nodes:
        raise RendezvousError(f"cannot scale to {least} to {nodes} nodes: ask for 1 or more")
    wanted = SizeWanted(min_nodes=least, max_nodes=nodes)
    await _want(store, run_id, rows.WANT_SIZE, rows.encode(wanted))


async def drain(store: Store, run_id: str, name: str) -> str:
    """Ask a node to go; it is named by its id, host or address. Its id.

    RendezvousError when there is no such job, or not exactly one such node.
    """
    nodes = (await status(store, run_id)).nodes
    found = [node.node for node in nodes if name in (node.node, node.host, node.address)]
    if len(found) != 1:
        known = ", ".join(sorted(f"{node.node} ({node.host})" for node in nodes)) or "none"
        what = "no node" if not found else f"{len(found)} nodes"
        raise RendezvousError(f"{what} of run {run_id!r} go(es) by {name!r}. There are: {known}.")
    await _want(store, run_id, rows.WANT_DRAIN + found[0], b"")
    return found[0]


async def stop(store: Store, run_id: str, code: int, reason: str) -> None:
    """Ask for the job's end. RendezvousError when there is no such job."""
    await _want(store, run_id, rows.WANT_STOP, rows.encode(StopWanted(code=code, reason=reason)))


async def _want(store: Store, run_id: str, name: str, value: bytes) -> None:
    found = await status(store, run_id)
    if found.verdict is not None:
        raise RendezvousError(f"run {run_id!r} has ended: {found.verdict.outcome}")
    lease = await store.grant(KEPT)
    await store.transact((), (Put(rows.base(run_id) + name, value, lease),))


def _is_node(name: str) -> bool:
    return name.startswith(rows.NODES)


def _read(kind: type[T], entry: Entry | None) -> T | None:
    return rows.decode(kind, entry.value) if entry else None
