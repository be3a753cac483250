"""The agent's own server for other agents: stores of rounds, and signs of life."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from torsh_runtime.contract import RECOVERY
from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Delete, Entry, Store
from torsh_runtime.store.connection import ARRIVED
from torsh_runtime.store.endpoint import TcpEndpoint, parse_endpoint
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.remote import RemoteStore
from torsh_runtime.store.scoped import ScopedStore
from torsh_runtime.store.server import StoreServer
from torshrun.health.clocks import Exchange
from torshrun.rendezvous import rows
from torshrun.rendezvous.address import is_loopback
from torshrun.rendezvous.base import SUMMARY_BYTES, NodeAssignment
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.heartbeats import Heartbeat, Heartbeats, Judge, Reply
from torshrun.rendezvous.own_keys import StoreWithOwnKeys
from torshrun.rendezvous.served import ServedStore

_LONGEST_BEAT = 1024 + 2 * SUMMARY_BYTES  # bytes
_BEAT = "beat "
"""Prefix of keys that are heartbeats: what follows is the beat.

The entry that answers a beat is named after the answer. In place of revision and lease it has
nanoseconds of the leader's CLOCK_MONOTONIC: when the beat came and when it was answered.
"""


class AgentServer(Heartbeats):
    """Answers agents of one epoch of the job, once it is open, until it is closed.

    Each node has a key of its own, so that a message to one cannot be sent to another. At node rank
    0 a round's store is here, under its own prefix, so that users of earlier ones do not disturb
    it.
    """

    def __init__(self, epoch: Epoch, node: str, on_refused: Callable[[str], None]) -> None:
        self._epoch = epoch
        self._store = _HubStore()
        self._server = StoreServer(self._store, self._key(node), on_refused=on_refused)
        self._leader: tuple[str, int, RemoteStore] | None = None
        self.endpoint = ""
        """Where other agents reach it."""

    async def open(self, address: str) -> AgentServer:
        """Serve on a free port; `address` is where others reach this host: it need not be one of
        its own, but if it is loopback nobody else is to come. StoreError when that cannot be done.
        """
        everywhere = "::" if ":" in address else "0.0.0.0"
        place = TcpEndpoint(address if is_loopback(address) else everywhere, 0)
        bound = parse_endpoint(await self._server.start(str(place)))
        assert isinstance(bound, TcpEndpoint)
        self.endpoint = str(TcpEndpoint(address, bound.port))
        return self

    # ---- stores of rounds

    def round_store(self, number: int) -> Store:
        """Return the round's store, which must be in this agent."""
        return ScopedStore(self._store, _prefix(number))

    async def serve_round(
        self, place: NodeAssignment, on_place: Callable[[NodeAssignment], None]
    ) -> ServedStore:
        """Serve the store of a round to this node's workers. Raise StoreError if that fails.

        It is in the agent of node rank 0. This agent has the keys of RECOVERY for itself.
        `on_place` is called with each place whose store it becomes.
        """
        on_place(place)
        part, release = self._open(place)
        whole = StoreWithOwnKeys(part, RECOVERY, MemoryStore())
        parts = [release]

        async def release_all() -> None:
            await whole.close()
            await parts[0]()

        async def move(to: NodeAssignment) -> None:
            part, release = self._open(to)
            whole.move(part)
            on_place(to)
            before, parts[0] = parts[0], release
            await before()

        secret = self._workers_key(place.round if place.since < 0 else place.since)
        return await ServedStore(whole, secret, release_all, move).start()

    def _open(self, place: NodeAssignment) -> tuple[Store, Callable[[], Awaitable[None]]]:
        """Return the store of a round, and what releases it."""
        if place.node_rank == 0:
            part = self.round_store(place.round)
            return part, partial(_empty, part)
        remote = RemoteStore(place.store_endpoint, self._key(place.store_node))
        return ScopedStore(remote, _prefix(place.round)), remote.close

    def _key(self, node: str) -> bytes:
        return self._epoch.key("hub", node)

    def _workers_key(self, number: int) -> bytes:
        """Return the key that workers have in common which began in a round, and no others."""
        return self._epoch.key("workers", str(number))

    # ---- signs of life

    def serve(self, judge: Judge | None) -> None:
        self._store.judge = judge

    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        try:
            leader = await self._reach(node, endpoint, fence, timeout)
            told, sent, came = await leader.timed_get(_BEAT + rows.encode(beat).decode())
        except StoreError:
            await self._hang_up()
            return Reply("silent")
        if told is None or told.key not in ("granted", "refused"):
            return Reply("silent")
        exchange = Exchange(sent, told.revision / 1e9, told.lease / 1e9, came)
        return Reply("granted" if told.key == "granted" else "refused", exchange)

    async def close(self) -> None:
        self.serve(None)
        await self._hang_up()
        await self._server.close()
        await self._store.close()

    async def _reach(self, node: str, endpoint: str, fence: int, timeout: float) -> RemoteStore:
        if self._leader and self._leader[:2] == (endpoint, fence):
            return self._leader[2]
        await self._hang_up()
        leader = RemoteStore(endpoint, self._key(node), timeout)
        self._leader = (endpoint, fence, leader)
        return leader

    async def _hang_up(self) -> None:
        if self._leader:
            leader, self._leader = self._leader[2], None
            await leader.close()


class _HubStore(MemoryStore):
    """A store whose readers may give signs of life."""

    judge: Judge | None = None

    async def get(self, key: str) -> Entry | None:
        if not key.startswith(_BEAT):
            return await super().get(key)
        text = key[len(_BEAT) :][:_LONGEST_BEAT]
        beat = rows.decode(Heartbeat, text.encode(errors="replace"))
        if beat is None:
            raise StoreError("this is no sign of life")
        granted = self.judge is not None and self.judge(beat)
        came, now = int(ARRIVED.get() * 1e9), time.monotonic_ns()
        return Entry("granted" if granted else "refused", b"", came, now)


def _prefix(number: int) -> str:
    return f"round/{number}/"


async def _empty(store: Store) -> None:
    with suppress(StoreError):  # it has gone with its epoch
        keys = [entry.key for entry in (await store.list("")).items]
        await store.transact((), [Delete(key) for key in keys])
