"""Records of a run, and its keys in a store."""

from __future__ import annotations

from typing import Any

from torsh_runtime.store.base import Store
from torsh_runtime.store.signed import SignedStore
from torshrun.rendezvous import rows
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.rows import EpochRow, Header, NodeRow

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
    """As who knows the secret reads them, without what all keys of the run begin with."""
    return {_key(record): rows.encode(record) for record in records}


EPOCH = Epoch("job", "0123456789abcdef", "", b"a secret that is long enough")


class JobStore(SignedStore):
    """A store as that epoch's nodes write and read there; it closes with this."""

    async def close(self) -> None:
        await self._store.close()


async def begin(store: Store) -> JobStore:
    """Begin that epoch of run "job" in the store."""
    signed = JobStore(store, EPOCH.records)
    row = rows.encode(EpochRow(name=EPOCH.name, after=EPOCH.after))
    await signed.put(rows.base(EPOCH.run_id) + rows.EPOCH, row)
    return signed


def _key(record: Header | NodeRow) -> str:
    return rows.ROUND if isinstance(record, Header) else rows.NODES + record.node
